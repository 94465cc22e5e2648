"""From a module to a network of units, by one walk over its traced graph."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.fx.node import map_aggregate

from cigl.runtime.compile.aliases import SharedMemory, Values, argument_changed_in_place
from cigl.runtime.compile.capture import attribute
from cigl.runtime.compile.exporting import Examples, captures
from cigl.runtime.compile.parsing import ASKS_SHAPE, IN_PLACE, RESHAPES, Parsed, makes_new, parse
from cigl.runtime.compile.rebuilding import REBUILT, rebuild
from cigl.runtime.compile.tracing import NotTraced, traced
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit

# Layers with a weight in common each hold it in the form that their kernel wants: as many bytes of weights as twice the
# model's, and a few more. What is beyond that runs in torch.
_TIED, _SMALL = 2, 1 << 24


def lower(model: nn.Module, example_inputs: Examples | None = None) -> Network:
    """The network of ``model``, not yet fused; ``Untraceable`` with the reason if there is none.

    The network holds the model's own tensors: pass a copy (tracing.copied) of what somebody else may change.
    """
    notes: list[str] = []
    for capture in captures(model, example_inputs, traced, NotTraced, notes):
        try:
            rebuild(model, capture.graph)
            network = Lowering(model, capture.graph, [*notes, *capture.notes]).network
            network.signature, network.structure = capture.signature, capture.structure
            return network
        except SharedMemory as error:
            notes.append(str(error))
        finally:
            model._modules.pop(REBUILT, None)
    raise Untraceable(model, notes)


class Untraceable(Exception):
    """A model that neither torch.export nor torch.fx could read: the copy, and what stopped them."""

    def __init__(self, model: nn.Module, notes: list[str]):
        super().__init__("; ".join(notes))
        self.model, self.notes = model, notes


class Lowering:
    """One walk over the graph. A change in place makes a new value, which the later readers of the old one read."""

    def __init__(self, model: nn.Module, graph: fx.Graph, notes: list[str]):
        self.network = Network(notes=notes)
        self._values = Values(graph)
        self._names: set[str] = set()  # of the units
        self._operations: dict[nn.Module, op.Operation] = {}  # one for each module, however often it is called
        self.nodes: dict[int, fx.Node] = {}  # whose values these are
        tensors = {id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}
        self._room = _TIED * sum(tensors.values()) + _SMALL
        for node in graph.nodes:
            if node.op == "placeholder":
                self.network.inputs.append(self._values.new(node))
            elif node.op == "get_attr":
                value = self._values.new(node)
                self.network.constants[value] = attribute(model, str(node.target))
                self.network.paths[value] = str(node.target)
            elif node.op == "output":
                self.network.output = map_aggregate(node.args[0], self._hole)
            else:
                self._call(node, attribute(model, str(node.target)) if node.op == "call_module" else None)
            if node.op != "output":
                self.nodes.setdefault(self._values[node], node)
        self.network.prune()

    def _hole(self, leaf: Any) -> Any:
        return op.Hole(self._values[leaf]) if isinstance(leaf, fx.Node) else leaf

    def _call(self, node: fx.Node, module: nn.Module | None) -> None:
        if "effect" in node.meta:
            self._effect(node)
            return
        changed = argument_changed_in_place(node, module)
        if changed is not None:
            # `x += 1` changes a tensor but not a number, and which one x is we don't know
            unclear = node.target in IN_PLACE and node.target is not operator.setitem
            self._values.check_alone(node, changed, unclear)
        operation, reads = self._parsed(node, module) or _in_torch(node, module, changed is not None)
        inputs = tuple(self._values[read] for read in reads)
        if isinstance(operation, op.Identity):
            self._values.same(node, reads[0])
            return
        output = self._values.new(node) if changed is None else self._values.changed(node, changed)
        may_be_a_view = isinstance(operation, op.InTorch) and not operation.copies and not operation.of_shape
        if may_be_a_view and changed is None and not makes_new(node, module):
            self._values.share(node, reads)
        name = node.name if module is None else node.meta.get("name", str(node.target))
        if name in self._names:  # a module that is called twice
            name = f"{name} ({node.name})"
        self._names.add(name)
        path = None if module is None else str(node.target)
        self.network.units.append(Unit(name, operation, inputs, (output,), path))

    def _effect(self, node: fx.Node) -> None:
        """A call for what it does, with its arguments as they are."""
        operation, reads = _in_torch(node, None, changes=False)
        inputs = tuple(self._values[read] for read in reads)
        effect = replace(operation, effect=node.meta["effect"])
        self.network.units.append(Unit(node.name, effect, inputs, (self._values.new(node),)))

    def _parsed(self, node: fx.Node, module: nn.Module | None) -> Parsed | None:
        if module in self._operations and len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs:
            return self._operations[module], [node.args[0]]
        parsed = parse(node, module)
        if module is not None and parsed is not None:
            layer = parsed[0].operation if isinstance(parsed[0], op.OnLine) else parsed[0]
            size = 4 * math.prod(layer.weight.shape) if isinstance(layer, op.Weighted) else 0
            if size > self._room:
                return None
            self._room -= size
            self._operations[module] = parsed[0]
        return parsed


def _in_torch(node: fx.Node, module: nn.Module | None, changes: bool) -> tuple[op.InTorch, list[fx.Node]]:
    """The call as it is, with holes for what it reads."""
    reads: dict[fx.Node, int] = {}

    def hole(leaf: Any) -> Any:
        return op.Hole(reads.setdefault(leaf, len(reads))) if isinstance(leaf, fx.Node) else leaf

    arguments, keywords = map_aggregate(node.args, hole), map_aggregate(node.kwargs, hole)
    asks_shape = node.target in ASKS_SHAPE or (node.target is getattr and node.args[1:] in (("shape",), ("ndim",)))
    unknown = module is not None and not type(module).__module__.startswith("torch.nn")
    call = op.TensorMethod(str(node.target)) if node.op == "call_method" else node.target if module is None else module
    reshapes = node.target in RESHAPES or type(module) is nn.Flatten
    return op.InTorch(call, arguments, keywords, changes or unknown, reshapes, asks_shape), list(reads)
