"""From a module to a network of units, by one walk over its traced graph."""

from __future__ import annotations

import inspect
import operator
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.exporting import Examples, captures
from cigl.runtime.compile.network import Network, Unit
from cigl.runtime.compile.parsing import ASKS_SHAPE, IN_PLACE, RESHAPES, makes_new, parse
from cigl.runtime.compile.rebuilding import rebuild
from cigl.runtime.compile.tracing import NotTraced, copied, traced


def lower(model: nn.Module, example_inputs: Examples | None = None) -> Network:
    """The network of a copy of ``model``, not yet fused; ``Untraceable`` with the reason if there is none."""
    model = copied(model)
    notes: list[str] = []
    for capture in captures(model, example_inputs, traced, NotTraced, notes):
        rebuild(model, capture.graph)
        try:
            network = Lowering(model, capture.graph, [*notes, *capture.notes]).network
            network.signature, network.structure = capture.signature, capture.structure
            return network
        except SharedMemory as error:
            notes.append(str(error))
    raise Untraceable(model, notes)


class Untraceable(Exception):
    """A model that neither torch.export nor torch.fx could read: the copy, and what stopped them."""

    def __init__(self, model: nn.Module, notes: list[str]):
        super().__init__("; ".join(notes))
        self.model, self.notes = model, notes


class SharedMemory(Exception):
    """A tensor is changed in place while another name for its memory is still read."""


class Lowering:
    """One walk over the graph. A change in place makes a new value, which the later readers of the old one read."""

    def __init__(self, model: nn.Module, graph: fx.Graph, notes: list[str]):
        self.network = Network(notes=notes)
        self.value: dict[fx.Node, int] = {}
        self.memory: list[int] = []  # per value; values that may share their memory have the same number
        self.place = {node: number for number, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if node.op == "placeholder":
                self.network.inputs.append(self._new(node))
                self.network.names.append(str(node.target))
            elif node.op == "get_attr":
                value = self._new(node)
                self.network.constants[value] = attribute(model, str(node.target))
                self.network.paths[value] = str(node.target)
            elif node.op == "output":
                self.network.output = map_aggregate(node.args[0], self._hole)
            else:
                self._call(node, attribute(model, str(node.target)) if node.op == "call_module" else None)
        self.network.prune()

    def _new(self, node: fx.Node) -> int:
        self.value[node] = len(self.memory)
        self.memory.append(len(self.memory))
        return self.value[node]

    def _hole(self, leaf: Any) -> Any:
        return op.Hole(self.value[leaf]) if isinstance(leaf, fx.Node) else leaf

    def _call(self, node: fx.Node, module: nn.Module | None) -> None:
        changed = _changed(node, module)
        if changed is not None:
            self._check_alone(node, changed)
        operation, reads = parse(node, module) or _in_torch(node, module, changed is not None)
        inputs = tuple(self.value[read] for read in reads)
        if isinstance(operation, op.Identity):
            self.value[node] = inputs[0]
            return
        output = self._new(node)
        shares = changed is not None or not makes_new(node, module)
        if isinstance(operation, op.InTorch) and shares and not operation.copies and not operation.of_shape:
            groups = {self.memory[value] for value in inputs}  # what it returns may be a view of any of them
            self.memory = [output if group in groups else group for group in self.memory]
        if changed is not None:
            old = self.value[changed]
            self.value |= {reader: output for reader, value in self.value.items() if value == old}
        name = node.name if module is None else node.meta.get("name", str(node.target))
        if any(unit.name == name for unit in self.network.units):  # a module that is called twice
            name = f"{name} ({node.name})"
        path = None if module is None else str(node.target)
        self.network.units.append(Unit(name, operation, inputs, (output,), path))

    def _check_alone(self, node: fx.Node, changed: fx.Node) -> None:
        value = self.value[changed]
        # `x += 1` changes a tensor but not a number, and which one x is we don't know
        unclear = node.target in IN_PLACE and node.target is not operator.setitem
        for other, number in self.value.items():
            later = any(self.place[user] > self.place[node] for user in other.users)
            if (number != value or unclear) and self.memory[number] == self.memory[value] and later:
                raise SharedMemory(
                    f"{node.name} changes in place what {other.name} may share and what is read again after it; "
                    "write it without the change in place"
                )


def attribute(model: nn.Module, path: str) -> Any:
    found: Any = model
    for part in path.split("."):
        found = getattr(found, part)
    return found.detach() if isinstance(found, Tensor) else found


def _changed(node: fx.Node, module: nn.Module | None) -> fx.Node | None:
    """The argument that this call changes in place."""
    target: Any = node.target
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    in_place = (
        getattr(module, "inplace", False) is True
        or (module is None and (target in IN_PLACE or (name.endswith("_") and not name.endswith("__"))))
        or (module is None and _asked_in_place(node))
    )
    if "out" in node.kwargs:
        raise SharedMemory(f"{node.name} writes into its argument out=; write it without")
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return first if in_place and isinstance(first, fx.Node) else None


def _asked_in_place(node: fx.Node) -> bool:
    """Whether the call was given ``inplace=True``, by name or by place."""
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a method's name, or a builtin without a signature: none of them has the argument
        return False
    return bool(bound.arguments.get("inplace", False))


def _in_torch(node: fx.Node, module: nn.Module | None, changes: bool) -> tuple[op.Operation, list[fx.Node]]:
    """The call as it is, with holes for what it reads."""
    reads: list[fx.Node] = []

    def hole(leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        if leaf not in reads:
            reads.append(leaf)
        return op.Hole(reads.index(leaf))

    arguments, keywords = map_aggregate(node.args, hole), map_aggregate(node.kwargs, hole)
    asks_shape = node.target in ASKS_SHAPE or (node.target is getattr and node.args[1] in ("shape", "ndim"))
    unknown = module is not None and not type(module).__module__.startswith("torch.nn")
    call = op.Method(str(node.target)) if node.op == "call_method" else node.target if module is None else module
    reshapes = node.target in RESHAPES or type(module) is nn.Flatten
    return op.InTorch(call, arguments, keywords, changes or unknown, reshapes, asks_shape), reads
