"""Plain data in, a model out: the graph that encode.py made, checked and callable.

The data is not trusted. What it names is looked up in the tables of allowed.py; nothing is imported or evaluated, and
modules get memory for the file's own tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from cigl.errors import CiglError
from cigl.runtime.format.allowed import FUNCTIONS, METHODS, is_plain, make_module, shapes
from cigl.runtime.format.container import Damaged

_DEEPEST = 8  # lists in lists
_MOST = 5000  # nodes; the largest models have a tenth of it, and time grows with its square


class _Ref(NamedTuple):
    node: int


class _Node(NamedTuple):
    op: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    last: list[int]  # nodes that are not used after this one


class Graph(nn.Module):
    """A loaded model: the file's operations in their order, under the names that its modules had.

    The names of its own attributes are odd because a user's modules may have any other.
    """

    _graph_temperature: float | None

    def __init__(self, nodes: list[_Node], temperature: float | None):
        super().__init__()
        self._graph_nodes, self._graph_temperature = nodes, temperature

    def _graph_run(self, *inputs: Any) -> Any:
        values: list[Any] = []
        waiting = iter(inputs)
        tracer = next((each.tracer for each in inputs if isinstance(each, fx.Proxy)), None)
        for node in self._graph_nodes:
            values.append(self._graph_value(node, values, waiting, tracer))
            for number in node.last:
                values[number] = None
        temperature = self._graph_temperature
        return values[-1] if temperature is None else values[-1] / temperature

    def _graph_value(self, node: _Node, values: list[Any], waiting: Iterator[Any], tracer: Any) -> Any:
        if node.op == "input":
            return next(waiting)
        if node.op == "tensor":
            if tracer is not None:  # else torch.fx would compute with a buffer while a file is loaded
                return tracer.create_proxy("get_attr", node.name, (), {})
            place, _, name = node.name.rpartition(".")
            return getattr(self.get_submodule(place), name)
        args = [_resolve(each, values) for each in node.args]
        kwargs = {key: _resolve(each, values) for key, each in node.kwargs.items()}
        if node.op == "module":
            return self.get_submodule(node.name)(*args, **kwargs)
        if node.op == "function":
            return FUNCTIONS[node.name](*args, **kwargs)
        if node.op == "method":
            if not isinstance(args[0], (Tensor, fx.Proxy)):
                raise CiglError(f"the model's graph calls {node.name} of a {type(args[0]).__name__}, not of a tensor.")
            return getattr(args[0], node.name)(*args[1:], **kwargs)
        return args[0]


class OneInput(Graph):
    """(torch.fx sees a fixed number of arguments only.)"""

    def forward(self, x: Any) -> Any:
        return self._graph_run(x)


class TwoInputs(Graph):
    def forward(self, x: Any, y: Any) -> Any:
        return self._graph_run(x, y)


_BY_INPUTS: dict[int, type[Graph]] = {1: OneInput, 2: TwoInputs}


def decode_graph(
    graph: Any, tensors: Mapping[str, Tensor], parameters: set[str], temperature: float | None = None
) -> Graph:
    """The model in eval mode, from data that is not trusted; ``Damaged`` if it can't be one."""
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list):
        raise Damaged("its graph is not a list of nodes")
    if len(graph["nodes"]) > _MOST:
        raise Damaged(f"its graph has {len(graph['nodes'])} nodes, more than {_MOST}")
    nodes = [_node(number, each) for number, each in enumerate(graph["nodes"])]
    kinds = [node.op for node in nodes]
    inputs = kinds.count("input")
    if kinds.count("output") != 1 or kinds[-1] != "output" or inputs not in _BY_INPUTS:
        raise Damaged("its graph does not lead from one or two inputs to one output")
    _mark_last_uses(nodes)
    model = _BY_INPUTS[inputs](nodes, temperature)
    shared: dict[int, nn.Parameter] = {}
    called = graph.get("modules")
    if not isinstance(called, dict) or {node.name for node in nodes if node.op == "module"} != called.keys():
        raise Damaged("its graph calls other modules than it describes")
    try:
        for path, fields in called.items():
            module = make_module(fields)
            for name in shapes(module):
                _give(module, name, f"{path}.{name}", tensors, parameters, shared)
            place, _, name = path.rpartition(".")
            _container(model, place).add_module(name, module)
        for node in nodes:
            place, _, name = node.name.rpartition(".")
            if node.op == "tensor" and not _has(model, node.name):
                _give(_container(model, place), name, node.name, tensors, parameters, shared)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"its graph has {' '.join(str(error).split())[:200]}") from error
    return model.eval()


def _has(model: nn.Module, path: str) -> bool:
    place, _, name = path.rpartition(".")
    try:
        module = model.get_submodule(place)
    except AttributeError:
        return False
    return name in module._parameters or name in module._buffers


def _container(model: nn.Module, path: str) -> nn.Module:
    """The plain module at this path, made if there is none."""
    place = model
    for name in path.split(".") if path else []:
        if name not in place._modules:
            place.add_module(name, nn.Module())
        place = place.get_submodule(name)
        if type(place) is not nn.Module:
            raise Damaged(f"its graph has something inside the {type(place).__name__} {path!r}")
    return place


def _give(
    module: nn.Module,
    name: str,
    full_name: str,
    tensors: Mapping[str, Tensor],
    parameters: set[str],
    shared: dict[int, nn.Parameter],
) -> None:
    """Register the file's tensor where the module needs one; a tied one is the same parameter everywhere."""
    tensor = tensors.get(full_name)
    if tensor is None:
        raise Damaged(f"{full_name} is missing")
    wanted = module._parameters.get(name, module._buffers.get(name))
    if wanted is not None and wanted.shape != tensor.shape:
        raise Damaged(f"{full_name} has the shape {list(tensor.shape)}, but its module needs {list(wanted.shape)}")
    if name in module._parameters or full_name in parameters:
        module.register_parameter(name, shared.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=False)))
    else:
        module.register_buffer(name, tensor)


def _node(number: int, node: Any) -> _Node:
    if not isinstance(node, dict):
        raise Damaged(f"node {number} of its graph is malformed")
    op, name = str(node.get("op")), node.get("name", "")
    args, kwargs = node.get("args", []), node.get("kwargs", {})
    known: dict[str, Callable[[str], bool]] = {
        "input": lambda name: not args,
        "output": lambda name: len(args) == 1,
        "tensor": lambda name: not args,
        "module": lambda name: len(args) > 0,
        "function": FUNCTIONS.__contains__,
        "method": lambda name: name in METHODS and len(args) > 0,
    }
    if not isinstance(name, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Damaged(f"node {number} of its graph is malformed")
    if op not in known or not known[op](name):
        raise Damaged(
            f"node {number} of its graph is {op[:40]} {name[:40]!r}, which this version of cigl does not know"
        )
    decoded = {key: _decode(each, number) for key, each in kwargs.items()}
    return _Node(op, name, tuple(_decode(each, number) for each in args), decoded, [])


def _decode(value: Any, number: int, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise Damaged(f"node {number} of its graph has arguments nested too deeply")
    if isinstance(value, list):
        return [_decode(each, number, depth + 1) for each in value]
    if not isinstance(value, dict):
        if not is_plain(value):
            raise Damaged(f"node {number} of its graph has the argument {str(value)[:40]!r}")
        return value
    if len(value) == 1:
        (kind, content), *_ = value.items()
        if kind == "node" and type(content) is int and 0 <= content < number:
            return _Ref(content)
        if kind == "dict" and isinstance(content, dict):
            return {key: _decode(each, number, depth + 1) for key, each in content.items()}
        if kind in ("tuple", "slice") and isinstance(content, list):
            parts = [_decode(each, number, depth + 1) for each in content]
            if kind == "tuple":
                return tuple(parts)
            if len(parts) == 3:
                return slice(*parts)
    raise Damaged(f"node {number} of its graph refers to a node that does not come before it")


def _parts(value: Any) -> Iterator[_Ref]:
    if isinstance(value, _Ref):
        yield value
    elif isinstance(value, slice):
        yield from _parts([value.start, value.stop, value.step])
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()))


def _mark_last_uses(nodes: list[_Node]) -> None:
    seen: set[int] = set()
    for node in reversed(nodes):
        for ref in _parts([node.args, node.kwargs]):
            if ref.node not in seen:
                seen.add(ref.node)
                node.last.append(ref.node)


def _resolve(value: Any, values: list[Any]) -> Any:
    if isinstance(value, _Ref):
        return values[value.node]
    if isinstance(value, tuple):
        return tuple(_resolve(each, values) for each in value)
    if isinstance(value, list):
        return [_resolve(each, values) for each in value]
    if isinstance(value, slice):
        return slice(*(_resolve(each, values) for each in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _resolve(each, values) for key, each in value.items()}
    return value
