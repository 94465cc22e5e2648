"""A model's operations, from torch.export with example inputs: for what torch.fx can't trace.

What depends on sizes is decided for the examples, and the signature says for which other sizes that holds.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from cigl.common.errors import CiglError
from cigl.common.text import first_line
from cigl.runtime.compile.capture import HINT, Capture, Captured
from cigl.runtime.compile.questions import drawing
from cigl.runtime.compile.translating import translate
from cigl.runtime.network.conditions import Condition, from_source
from cigl.runtime.network.inputs import Path, Signature, parameters


@dataclass(frozen=True)
class Remembered:
    """Example inputs that nobody gave for this: used where there is no graph without them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Examples = Sequence[Any] | Mapping[str, Any] | Remembered
CONSTANT = "captured_"  # begins the names of a graph's own tensors
_TOLERANCE = 1e-4  # of the largest value


class NotExported(Exception):
    """Why there is no graph."""


def captures(
    model: nn.Module,
    examples: Examples | None,
    trace: Callable[[nn.Module], Capture],
    refusal: type[Exception],
    reasons: list[str],
) -> Iterator[Capture]:
    """The model's graphs, the best first. ``trace`` may raise a ``refusal``; why one is missing goes to ``reasons``."""
    if isinstance(model, Captured):
        yield model.capture()
        return
    remembered = isinstance(examples, Remembered)

    def exported() -> Iterator[Capture]:
        if examples is None:
            return
        try:
            yield export(model, examples)
        except NotExported as error:
            reasons.append(f"torch.export can't capture the model: {error}")
        except CiglError:
            if not remembered:  # of the caller's examples
                raise

    if not remembered:
        yield from exported()
    try:
        capture = trace(model)
    except refusal as error:
        if remembered:
            yield from exported()
        reasons.append(str(error) if examples is None else str(error).removesuffix(HINT))
        return
    if remembered and capture.notes:
        yield from exported()
    yield capture
    if remembered and not capture.notes:
        yield from exported()


def arguments(examples: Examples) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The examples as positional and keyword arguments."""
    if isinstance(examples, Remembered):
        return examples.args, dict(examples.kwargs)
    if isinstance(examples, Mapping):
        return (), dict(examples)
    if isinstance(examples, tuple | list):
        return tuple(examples), {}
    raise CiglError(
        "example_inputs must be a tuple of inputs, or a dict of keyword inputs, "
        f"not {type(examples).__name__}: for one tensor, (x,)."
    )


def export(model: nn.Module, examples: Examples) -> Capture:
    """The graph of a model in eval mode, with sizes left open; ``model`` gets the constants that it needs."""
    args, kwargs = arguments(examples)
    _without_cache(model)
    with _attention_in_parts(), torch.no_grad():
        is_drawn = drawing()
        try:
            expected = model(*args, **kwargs)
        except Exception as error:
            raise CiglError(f"the model can't be called with the example_inputs: {first_line(error, 200)}.") from error
        _need(not is_drawn(), "it draws random numbers that are not torch's")
        try:
            program = _exported(model, args, kwargs)
            graph = _graph(model, program)
            translate(graph)
        except NotExported:
            raise
        except Exception as error:  # a forward can fail in any way
            raise NotExported(first_line(error, 200)) from error
        checked = _Check(model, graph, program)
        _need(checked.agrees(checked.examples, expected), "its graph computes something else")
        signature = _signature(model, program)
        signature.conditions = [each for each in signature.conditions if not checked.is_needless(each)]
    return Capture(graph, signature, program.call_spec.out_spec)


@contextmanager
def _attention_in_parts() -> Iterator[None]:
    """nn.MultiheadAttention by functions of its weights, rather than in one call that has them all."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _without_cache(model: nn.Module) -> None:
    """Transformers' models return their keys and values for a next token, which an engine can't be given."""
    for module in model.modules():
        if getattr(getattr(module, "config", None), "use_cache", False) is True:
            module.config.use_cache = False  # type: ignore[union-attr]


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sizes: Any = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor):
            sizes[leaf] = dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO)
    try:
        with _open_sizes():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=sizes, strict=False)
    except Exception:  # some broadcasting can't be decided then
        program = torch.export.export(model, args, kwargs, dynamic_shapes=sizes, strict=False)
    if any(_changes(node) for node in program.graph.nodes):
        program = program.run_decompositions({})
    return program


def _open_sizes() -> AbstractContextManager[Any]:
    """Sizes of 1 are left as open as others."""
    from torch.fx.experimental import _config as sizes_config  # like torch.export itself, half of torch's compiler

    if not hasattr(sizes_config, "backed_size_oblivious"):  # before torch 2.7
        return nullcontext()
    return sizes_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined,no-any-return]


def _changes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _graph(model: nn.Module, program: Any) -> fx.Graph:
    """The program's graph with the model's tensors as attributes, and its user's inputs and outputs alone."""
    graph: fx.Graph = program.graph
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        kind, node = spec.kind.name, placeholders[spec.arg.name]
        if kind == "USER_INPUT":
            if not isinstance(node.meta.get("val"), Tensor):
                _need(not node.users, f"the size or number {node.name} is an input")
                graph.erase_node(node)
            continue
        _need(kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"), f"{node.name} is a {kind.lower()}")
        path = spec.target
        if kind == "CONSTANT_TENSOR":
            path = f"{CONSTANT}{sum(name.startswith(CONSTANT) for name in model._buffers)}"
            model.register_buffer(path, program.constants[spec.target].detach().clone())
        with graph.inserting_before(node):
            attribute = graph.create_node("get_attr", path)
        attribute.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(attribute)
        graph.erase_node(node)
    for node in graph.nodes:
        _need(not isinstance(node.target, torch._ops.HigherOrderOperator), f"{node.name} is control flow on values")
        _need(node.op != "get_attr" or hasattr(model, node.target.split(".")[0]), f"{node.name} is a part of the graph")
    _keep_user_outputs(program, graph)
    return graph


def _keep_user_outputs(program: Any, graph: fx.Graph) -> None:
    (output,) = (node for node in graph.nodes if node.op == "output")
    kept = []
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind.name == "USER_OUTPUT":
            kept.append(value)
        else:  # an input may be changed in place: the caller's tensor stays as it is
            _need(spec.kind.name == "USER_INPUT_MUTATION", f"it changes {spec.target}")
    output.args = (tuple(kept),)


def _signature(model: nn.Module, program: Any) -> Signature:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    order, defaults = parameters(model)
    leaves = pytree.tree_flatten_with_path(program.example_inputs)[0]
    order += [f"input_{n}" for n in range(len(order), len(program.example_inputs[0]))]
    inputs: list[Path] = []
    values = [node.meta.get("val") for node in program.graph.nodes]
    signature = Signature(inputs, order, defaults, sized=not any(free_unbacked_symbols(each) for each in values))
    for keys, leaf in leaves:
        kind, first, *rest = [getattr(key, "key", getattr(key, "idx", 0)) for key in keys]
        path: Path = (order[first] if kind == 0 else first, *rest)
        if isinstance(leaf, Tensor):
            inputs.append(path)
            signature.dtypes.append(leaf.dtype)
        else:
            signature.fixed[path] = leaf
    signature.conditions = _conditions(program, inputs)
    return signature


def _conditions(program: Any, inputs: Sequence[Path]) -> list[Condition]:
    """Fixed sizes, and what the model's decisions on sizes require."""
    names = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [node.meta["val"].shape for node in names.values()]
    found: list[Condition] = [
        ["==", ["size", number, dim], int(size)]
        for number, shape in enumerate(shapes)
        for dim, size in enumerate(shape)
        if isinstance(size, int)
    ]
    sources = {
        ast.unparse(ast.parse("L" + "".join(f"[{key!r}]" for key in path))): number
        for number, path in enumerate(inputs)
    }
    read = (from_source(source, sources) for source in getattr(program, "_guards_code", None) or ())
    return found + [condition for condition in read if condition is not None and condition not in found]


class _Check:
    """Compares a graph with its model."""

    def __init__(self, model: nn.Module, graph: fx.Graph, program: Any):
        self._model, self._run = model, fx.Interpreter(fx.GraphModule(model, graph)).run
        self.examples, self._structure = pytree.tree_flatten(program.example_inputs)
        self._tensors = [number for number, leaf in enumerate(self.examples) if isinstance(leaf, Tensor)]
        self._sizes = [list(node.meta["val"].shape) for node in graph.nodes if node.op == "placeholder"]
        self._known: dict[str, bool] = {}

    def agrees(self, leaves: Sequence[Any], expected: Any) -> bool:
        """Whether the graph computes what the model does, as close as an engine must be."""
        try:
            found = self._run(*(leaves[number].clone() for number in self._tensors))
        except Exception as error:
            raise NotExported(first_line(error, 200)) from error
        return all(_close(a, b) for a, b in zip(found, pytree.tree_leaves(expected), strict=True))

    def is_needless(self, condition: Condition) -> bool:
        """torch.export likes to rule out sizes of 1. Where the graph is right for them all the same, we don't."""
        match condition:
            case ["!=" | ">", ["size", int(number), int(dim)], 1] | [">=", ["size", int(number), int(dim)], 2]:
                size = str(self._sizes[number][dim])
                if size not in self._known:
                    self._known[size] = self._holds_for_one(size)
                return self._known[size]
        return False

    def _holds_for_one(self, size: str) -> bool:
        leaves = list(self.examples)
        for number, sizes in zip(self._tensors, self._sizes, strict=True):
            for dim, each in enumerate(sizes):
                if str(each) == size:
                    leaves[number] = leaves[number].narrow(dim, 0, 1)
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        try:
            return self.agrees(leaves, self._model(*args, **kwargs))
        except Exception:  # of the model, or of the graph
            return False


def _close(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, Tensor):
        return True
    near = _TOLERANCE * (theirs.abs().max() if theirs.is_floating_point() and theirs.numel() else 0)
    return ours.shape == theirs.shape and not bool(((ours.double() - theirs.double()).abs() > near).any())


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotExported(otherwise)
