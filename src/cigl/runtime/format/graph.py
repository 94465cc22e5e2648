"""A loaded model: the file's operations in their order, under the names that its modules had."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from cigl.common.errors import CiglError
from cigl.common.text import one_line
from cigl.runtime.compile.capture import Capture, Captured
from cigl.runtime.format.allowed import FUNCTIONS, RECORDED
from cigl.runtime.network.inputs import Signature

LOGITS = "logits"  # what a temperature divides in an output that has names


@dataclass(frozen=True)
class Ref:
    node: int


class Node(NamedTuple):
    op: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    last: list[int]  # nodes that are not used after this one


class Graph(Captured):
    """The names of its own attributes are odd because a user's modules may have any other."""

    _graph_temperature: float | None

    def __init__(self, nodes: list[Node], signature: Signature, temperature: float | None):
        super().__init__()
        self._graph_nodes, self._graph_signature, self._graph_temperature = nodes, signature, temperature

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = iter(self._graph_signature.bind(args, kwargs))
        values: list[Any] = []
        temperature = self._graph_temperature
        try:
            for node in self._graph_nodes:
                values.append(next(inputs) if node.op == "input" else self._graph_value(node, values))
                for number in node.last:
                    values[number] = None
            return values[-1] if temperature is None else _divided(values[-1], lambda logits: logits / temperature)
        except Exception as error:  # whatever torch says of inputs that don't fit, or of a graph that makes no sense
            number = min(len(values), len(self._graph_nodes) - 1)
            node = self._graph_nodes[number]
            place = f"node {number}, {node.op} {node.name}"
            raise CiglError(f"the model's graph can't be run at {place}: {one_line(error)}.") from error

    def _graph_value(self, node: Node, values: list[Any]) -> Any:
        if node.op == "tensor":
            place, _, name = node.name.rpartition(".")
            return getattr(self.get_submodule(place), name)
        args = [resolved(each, values) for each in node.args]
        kwargs = {key: resolved(each, values) for key, each in node.kwargs.items()}
        if node.op == "module":
            return self.get_submodule(node.name)(*args, **kwargs)
        if node.op == "function":
            return FUNCTIONS[node.name](*args, **kwargs)
        if node.op == "method":
            if not isinstance(args[0], Tensor):
                raise CiglError(f"it is called of a {type(args[0]).__name__}, not of a tensor")
            return getattr(args[0], node.name)(*args[1:], **kwargs)
        return args[0]

    def capture(self) -> Capture:
        """The nodes as torch.fx has them. Nothing is computed."""
        graph = fx.Graph()
        made: list[Any] = []
        names = iter(self._graph_signature.names)
        kinds = {"module": "call_module", "function": "call_function", "method": "call_method"}
        for node in self._graph_nodes[:-1]:
            if node.op == "input":
                name = next(names)
                made.append(graph.create_node("placeholder", name if name.isidentifier() else "input"))
            elif node.op == "tensor":
                made.append(graph.create_node("get_attr", node.name))
            else:
                target = RECORDED[node.name] if node.op == "function" else node.name
                args = tuple(resolved(each, made) for each in node.args)
                kwargs = {key: resolved(each, made) for key, each in node.kwargs.items()}
                made.append(graph.create_node(kinds[node.op], target, args, kwargs))
        output = resolved(self._graph_nodes[-1].args[0], made)
        if self._graph_temperature is not None:
            divisor = self._graph_temperature
            output = _divided(
                output, lambda node: graph.create_node("call_function", operator.truediv, (node, divisor))
            )
        if not isinstance(output, fx.Node):
            leaves, structure = pytree.tree_flatten(output)
            graph.output(tuple(leaves))
            return Capture(graph, self._graph_signature, structure)
        graph.output(output)
        return Capture(graph, self._graph_signature)


def _divided(output: Any, divide: Any) -> Any:
    """With its logits divided."""
    if isinstance(output, dict):
        return type(output)(output | {LOGITS: divide(output[LOGITS])})
    return divide(output)


def resolved(value: Any, values: list[Any]) -> Any:
    """Nested arguments with values in the place of references."""
    if isinstance(value, Ref):
        return values[value.node]
    if type(value) is tuple:
        return tuple(resolved(each, values) for each in value)
    if isinstance(value, list):
        return [resolved(each, values) for each in value]
    if isinstance(value, slice):
        return slice(*(resolved(each, values) for each in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return type(value)((key, resolved(each, values)) for key, each in value.items())
    return value
