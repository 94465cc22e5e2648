"""A model in, plain data out: its operations as a graph of names, which decode.py makes a model from.

{"modules": {path: {"type": "Conv2d", "stride": [1, 1], ...}},
 "nodes": [{"op": "input", "name": "x"}, {"op": "module", "name": path, "args": [{"node": 0}]}, ...],
 "signature": {"order": ["x", "mask"], ...}}

Arguments are plain values, lists, and {"node": 3}, {"tuple": [...]}, {"slice": [...]}, {"dict": {...}},
{"named": {...}}, {"dtype": "F32"}; a node refers to nodes before it alone. Modules, functions and methods are those of
allowed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from cigl.common.text import first_line
from cigl.runtime.compile.capture import HINT, Capture
from cigl.runtime.compile.exporting import Examples, captures
from cigl.runtime.compile.tracing import Tracer, hooked, remove_asserts
from cigl.runtime.format.allowed import FLOATS, FUNCTION_NAMES, METHODS, is_plain, make_module, module_fields, shapes
from cigl.runtime.format.container import NAMES
from cigl.runtime.format.tensors import named_tensors
from cigl.runtime.network.inputs import Signature, of_forward


class Unsupported(Exception):
    """An operation that a file can't hold, because the tables don't have it."""


def encode_graph(model: nn.Module, example_inputs: Examples | None = None) -> dict[str, Any]:
    """The graph of a model in eval mode, or ``Unsupported`` with the operation that a file can't hold.

    An exported model gets the constants of its graph as buffers.
    """
    reasons: list[str] = []
    for capture in captures(model, example_inputs, _traced, Unsupported, reasons):
        try:
            return _encoded(model, capture)
        except Unsupported as reason:
            reasons.append(str(reason))
    raise Unsupported("; ".join(reasons))


def _traced(model: nn.Module) -> Capture:
    _refuse_hooks("the model", model)
    if "forward" in vars(model):
        raise Unsupported("its forward is not that of its class")  # which is what torch.fx traces
    try:
        graph = Tracer().trace(model)
    except Exception as error:  # a user's forward can fail in any way on what is no tensor
        raise Unsupported(f"it can't be traced ({first_line(error)}){HINT}") from error
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    return Capture(graph, of_forward(model, names))


def _encoded(model: nn.Module, capture: Capture) -> dict[str, Any]:
    modules: dict[str, Any] = {}
    nodes: list[dict[str, Any]] = []
    numbers: dict[fx.Node, int] = {}
    remove_asserts(capture.graph)
    paths = iter(capture.signature.inputs)
    for node in capture.graph.nodes:
        if node.op == "placeholder":
            if str(node.target).startswith("*"):
                raise Unsupported(f"it takes any number of inputs, {node.target}")
            name, *inside = next(paths)
            nodes.append({"op": "input", "name": name} | ({"args": inside} if inside else {}))
        elif node.op == "output":
            nodes.append({"op": "output", "args": [_encode_output(node.args[0], capture.structure, numbers)]})
        else:
            nodes.append(_node(node, model, modules, numbers))
        numbers[node] = len(numbers)
    return {"modules": modules, "nodes": nodes, "signature": _signature(capture.signature)}


def _signature(signature: Signature) -> dict[str, Any]:
    for value in signature.fixed.values():
        if value is not None and type(value) not in (bool, int, float, str):
            raise Unsupported(f"the input {str(value)[:40]!r} is not plain data")
    return {
        "order": signature.order,
        "defaults": signature.defaults,
        "fixed": [[list(path), value] for path, value in signature.fixed.items()],
        "dtypes": [None if dtype is None else NAMES[dtype] for dtype in signature.dtypes],
        "conditions": signature.conditions,
        "sized": signature.sized,
    }


def _encode_output(output: Any, structure: Any, numbers: Mapping[fx.Node, int]) -> Any:
    if structure is None:
        return _encode(output, numbers)
    places = pytree.tree_unflatten(list(range(len(output))), structure)

    def at(place: Any) -> Any:
        if type(place) is int:
            return _encode(output[place], numbers)
        named = place._asdict() if hasattr(place, "_asdict") else place if isinstance(place, dict) else None
        if named is not None and all(isinstance(key, str) for key in named):
            return {"dict" if type(place) is dict else "named": {key: at(each) for key, each in named.items()}}
        if type(place) in (tuple, list):
            parts = [at(each) for each in place]
            return {"tuple": parts} if type(place) is tuple else parts
        raise Unsupported(f"it returns a {type(place).__name__}")

    return at(places)


def _node(node: fx.Node, model: nn.Module, modules: dict[str, Any], numbers: Mapping[fx.Node, int]) -> dict[str, Any]:
    target: Any = node.target
    if node.op == "get_attr":
        if target not in named_tensors(model):
            raise Unsupported("a tensor is made while it runs")
        return {"op": "tensor", "name": target}
    if node.op == "call_module":
        kind, name = "module", target
        modules[target] = _module(target, model.get_submodule(target))
    elif node.op == "call_function":
        kind, name = "function", FUNCTION_NAMES.get(target, "")
    else:
        kind, name = "method", target if target in METHODS else ""
    if not name:
        raise Unsupported(f"the operation {getattr(target, '__name__', target)!r} is not among those a file can hold")
    found: dict[str, Any] = {"op": kind, "name": name, "args": [_encode(value, numbers) for value in node.args]}
    if node.kwargs:
        found["kwargs"] = {key: _encode(value, numbers) for key, value in node.kwargs.items()}
    return found


def _module(path: str, module: nn.Module) -> dict[str, Any]:
    fields = module_fields(module)
    if fields is None:
        raise Unsupported(f"the module {path!r} is a {type(module).__name__}")
    _refuse_hooks(f"the module {path!r}", module)
    try:
        made = make_module(fields)
    except (ValueError, TypeError) as error:
        raise Unsupported(f"the module {path!r} is {error}") from error
    if shapes(made) != shapes(module):
        raise Unsupported(f"the module {path!r} has other tensors than a {type(module).__name__} has")
    return fields


def _refuse_hooks(whose: str, module: nn.Module) -> None:
    if hooked(module):
        raise Unsupported(f"{whose} has a forward hook")


def _encode(value: Any, numbers: Mapping[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": numbers[value]}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [_encode(each, numbers) for each in value]}
    if isinstance(value, list):
        return [_encode(each, numbers) for each in value]
    if isinstance(value, slice):
        return {"slice": [_encode(each, numbers) for each in (value.start, value.stop, value.step)]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(each, numbers) for key, each in value.items()}}
    if is_plain(value):
        return value
    if isinstance(value, torch.dtype) and value in NAMES:
        return {"dtype": NAMES[value]}
    if type(value) is float and str(value) in FLOATS:
        return {"float": str(value)}
    raise Unsupported(f"the argument {str(value)[:40]!r} is not plain data")
