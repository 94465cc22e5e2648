"""A graph that TorchDynamo has captured, as a network of units for inputs of one kind.

Parameters and buffers are inputs of such a graph. Layers stand in it as functions of them, and what is called for its
effect (switching gradients off, entering autocast, moving a buffer) as calls that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from cigl.runtime.compile.aliases import SharedMemory, argument_changed_in_place
from cigl.runtime.compile.lowering import Lowering
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit
from cigl.runtime.program.steps import Shape
from cigl.runtime.training.capture.attention import expose_projections

_map: Any = map_aggregate  # torch knows only the kinds of arguments that a graph may have


class NotLowered(Exception):
    """Why a graph runs in torch as it is."""


class Unfaithful(Exception):
    """Why a graph does not do what Python would: the model must run without being captured."""


def check_faithful(graph: fx.Graph) -> None:
    """Refuse what Dynamo leaves to its usual backends, as the recomputation of checkpointed parts."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator) and "autograd_function_apply" not in str(
            node.target
        ):
            checkpoint = "checkpoint" in str(node.target)
            raise Unfaithful("parts of it are checkpointed" if checkpoint else f"it calls {node.target}")


@dataclass
class LoweredGraph:
    """A network whose inputs are those of the graph, in its order."""

    network: Network
    shapes: dict[int, Shape]  # of float32 values on the CPU
    tensors: dict[int, Tensor]  # the parameters and buffers among the inputs
    layers: dict[str, nn.Module]  # by the ``module`` of their units: what kernels read
    in_torch: dict[int, Unit]  # these units as torch computes them, by their output


def lower_graph(module: fx.GraphModule, args: Sequence[Any], names: Mapping[int, str]) -> LoweredGraph:
    """For inputs like ``args``; ``names`` has the model's parameters and buffers by their id."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sizes = _Sizes(placeholders, args)
    graph, copies = sizes.inserted(module.graph)
    try:
        return _lowered(module, graph, copies, sizes, args, names)
    except SharedMemory as error:
        raise NotLowered(str(error)) from error


def _lowered(
    module: fx.GraphModule,
    graph: fx.Graph,
    copies: Mapping[fx.Node, fx.Node],
    sizes: _Sizes,
    args: Sequence[Any],
    names: Mapping[int, str],
) -> LoweredGraph:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    tensors = {copies[node]: arg for node, arg in zip(placeholders, args, strict=True) if id(arg) in names}
    expose_projections(graph)
    layers = _Layers(tensors, names)
    _mark_effects(graph, {copies[node] for node in placeholders})
    layers.replace(graph)
    twins = nn.Module()
    for path, twin in layers.twins.items():
        twins.add_module(path, twin)
    for node in graph.nodes:
        if node.op == "get_attr":  # the body of an autograd function
            setattr(twins, str(node.target), getattr(module, str(node.target)))
    lowering = Lowering(twins, graph, [])
    network = lowering.network
    numbers = dict(zip((node for node in graph.nodes if node.op == "placeholder"), network.inputs, strict=True))
    own = {numbers[node]: tensor for node, tensor in tensors.items()}
    shapes = {value: sizes.shape(node) for value, node in lowering.nodes.items()}
    return LoweredGraph(network, shapes, own, layers.holders, layers.in_torch(network, numbers))


class _Sizes:
    """The numbers behind the sizes that a graph leaves open."""

    def __init__(self, placeholders: Sequence[fx.Node], args: Sequence[Any]):
        self._bound: dict[Any, int] = {}
        for node, arg in zip(placeholders, args, strict=True):
            example = node.meta.get("example_value")
            if isinstance(example, Tensor) and isinstance(arg, Tensor):
                for size, actual in zip(example.shape, arg.shape, strict=True):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                        self._bound[size.node.expr] = actual

    def number(self, size: Any) -> int | None:
        """None: it follows from something else than the shapes of the inputs."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        value = size.node.expr.subs(self._bound)
        return int(value) if value.is_number else None

    def shape(self, node: fx.Node) -> Shape:
        """Of a float32 tensor on the CPU, if the value is one."""
        value = node.meta.get("example_value")
        if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
            return None
        sizes = [self.number(size) for size in value.shape] if value.layout == torch.strided else []
        return tuple(size or 0 for size in sizes) if sizes and all(sizes) else None

    def inserted(self, graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
        """A copy of the graph with these numbers in it, and the copy of each node."""
        new: fx.Graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        known: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            copies[node] = new.node_copy(node, lambda source: known.get(source, copies[source]))
            example = node.meta.get("example_value")
            if isinstance(example, torch.SymInt) and (number := self.number(example)) is not None:
                known[node] = number
        for node in reversed(list(new.nodes)):
            if isinstance(node.meta.get("example_value"), torch.SymInt) and not node.users and node.op != "placeholder":
                new.erase_node(node)
        return new, copies


def _mark_effects(graph: fx.Graph, inputs: set[fx.Node]) -> None:
    """Calls whose place among the others must stay. A counter that nobody reads, as batch norm's, can move any time."""
    memory = {_storage(node): node for node in inputs if _storage(node) is not None}
    whole = set(inputs)  # nodes that are an input, not a view of a part of it
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if "_functorch" in f"{getattr(node.target, '__module__', '')} {node.target}":
            raise NotLowered("it transforms functions (torch.func)")
        changed = argument_changed_in_place(node, None)
        owner = None if changed is None else memory.get(_storage(changed))
        if owner is not None and changed not in whole:
            raise NotLowered(f"{node.name} changes a part of an input or buffer in place")
        if owner is not None:
            whole.add(node)
            alone = len(owner.users) == 1 and node.all_input_nodes == [owner] and not node.users
            node.meta["effect"] = "any time" if alone else "here"
        elif "example_value" not in node.meta or (changed is None and not node.users):
            node.meta["effect"] = "here"


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) and value.layout == torch.strided else None


class _Layers:
    """Calls of layers' functions as calls of modules, whose twins on the meta device can be lowered."""

    def __init__(self, tensors: Mapping[fx.Node, Tensor], names: Mapping[int, str]):
        self._tensors, self._names = tensors, names
        self._made: dict[Any, tuple[nn.Module, nn.Module]] = {}
        self._calls: dict[str, _Found] = {}
        self.twins: dict[str, nn.Module] = {}
        self.holders: dict[str, nn.Module] = {}

    def replace(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            read = _LAYERS.get(node.target) if node.op == "call_function" else None
            found = None if read is None else self._found(node, read)
            if found is None:
                continue
            path = f"layer_{len(self._calls)}"
            self._calls[path] = found
            self.holders[path], self.twins[path] = self._modules(found)
            with graph.inserting_before(node):
                called = graph.create_node("call_module", path, (found.x,))
            called.meta |= node.meta
            weight = self._tensors[found.tensors[0]] if found.tensors[0] is not None else None
            called.meta["name"] = self._names.get(id(weight), node.name).removesuffix(".weight")
            node.replace_all_uses_with(called)
            graph.erase_node(node)

    def in_torch(self, network: Network, numbers: Mapping[fx.Node, int]) -> dict[int, Unit]:
        found = {}
        for unit in network.units:
            if unit.module is not None:
                call = self._calls[unit.module]
                own = [numbers[node] for node in call.nodes]
                found[unit.outputs[0]] = Unit(unit.name, call.operation(), (unit.inputs[0], *own), unit.outputs)
        return found

    def _found(self, node: fx.Node, read: Callable[..., _Found]) -> _Found | None:
        try:
            found = read(*node.args, **node.kwargs)
        except TypeError:  # arguments that the kernels don't know
            return None
        found.target, found.args, found.kwargs = node.target, node.args, node.kwargs
        weight, bias, *_ = found.tensors
        is_own = all(isinstance(each, fx.Node) and each in self._tensors for each in found.nodes)
        if not is_own or not isinstance(found.x, fx.Node) or found.x in self._tensors:
            return None
        learned = all(isinstance(self._tensors[each], nn.Parameter) for each in (weight, bias) if each is not None)
        return found if learned else None

    def _modules(self, found: _Found) -> tuple[nn.Module, nn.Module]:
        """One for all calls with the same tensors."""
        tensors = [None if each is None else self._tensors[each] for each in found.tensors]
        key = (found.make, tuple(map(id, tensors)), repr(found.fields))
        if key not in self._made:
            twins = [None if each is None else torch.empty_like(each, device="meta") for each in tensors]
            self._made[key] = found.make(tensors, found.fields), found.make(twins, found.fields)
        return self._made[key]


@dataclass
class _Found:
    """A layer's call: its input, its tensors (nodes, or None) and what else it is made from."""

    x: Any
    make: Callable[..., nn.Module]
    tensors: tuple[Any, ...]
    fields: dict[str, Any]
    target: Any = None
    args: Any = ()
    kwargs: Any = None

    @property
    def nodes(self) -> list[fx.Node]:
        return [each for each in self.tensors if each is not None]

    def operation(self) -> op.InTorch:
        """The call as it is, of the input and the tensors."""
        places = {node: op.Hole(number) for number, node in enumerate([self.x, *self.nodes])}
        args, kwargs = _map(
            (self.args, self.kwargs), lambda each: places.get(each, each) if isinstance(each, fx.Node) else each
        )
        return op.InTorch(self.target, args, dict(kwargs))


def _linear(input: Any, weight: Any, bias: Any = None) -> _Found:
    return _Found(input, _make_linear, (weight, bias), {})


def _make_linear(tensors: Sequence[Any], fields: dict[str, Any]) -> nn.Module:
    weight, bias = tensors
    return _filled(nn.Linear(weight.shape[1], weight.shape[0], device="meta"), weight=weight, bias=bias)


def _conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> _Found:
    if weight is None or any(not isinstance(each, int | tuple | list) for each in (stride, padding, dilation)):
        raise TypeError
    fields = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation), "groups": groups}
    return _Found(input, _make_conv2d, (weight, bias), fields)


def _pair(size: Any) -> tuple[int, int]:
    sizes = list(size) if isinstance(size, tuple | list) else [size]
    return sizes[0], sizes[-1]


def _make_conv2d(tensors: Sequence[Any], fields: dict[str, Any]) -> nn.Module:
    weight, bias = tensors
    channels = weight.shape[1] * fields["groups"], weight.shape[0]
    layer = nn.Conv2d(*channels, tuple(weight.shape[2:]), bias=bias is not None, device="meta", **fields)
    return _filled(layer, weight=weight, bias=bias)


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> _Found:
    if training is not True or not isinstance(momentum, float) or not isinstance(eps, float):
        raise TypeError
    features = input.meta["example_value"].shape[1] if isinstance(input, fx.Node) else None
    if not isinstance(features, int):
        raise TypeError
    fields = {"momentum": momentum, "eps": eps, "features": features}
    return _Found(input, _make_batch_norm, (weight, bias, running_mean, running_var), fields)


def _make_batch_norm(tensors: Sequence[Any], fields: dict[str, Any]) -> nn.Module:
    """Without a counter: the graph moves it by itself."""
    weight, bias, mean, var = tensors
    layer = nn.BatchNorm2d(fields["features"], fields["eps"], fields["momentum"], device="meta")
    return _filled(layer, weight=weight, bias=bias, running_mean=mean, running_var=var, num_batches_tracked=None)


def _filled(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """With these very tensors."""
    for name, tensor in tensors.items():
        held: dict[str, Any] = layer._buffers if name in layer._buffers else layer._parameters
        if held is layer._parameters and tensor is not None and not isinstance(tensor, nn.Parameter):  # a twin's
            tensor = nn.Parameter(tensor, requires_grad=False)
        held[name] = tensor
    return layer.train()


_LAYERS: dict[Any, Callable[..., _Found]] = {F.linear: _linear, F.conv2d: _conv2d, F.batch_norm: _batch_norm}
