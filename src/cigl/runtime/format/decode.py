"""Plain data in, a model out: the graph that encode.py made, checked and callable.

The data is not trusted. What it names is looked up in the tables of allowed.py; nothing is imported or evaluated, and
modules get memory for the file's own tensors only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torch.fx.node import map_aggregate

from cigl.runtime.compile.capture import Named
from cigl.runtime.format.allowed import FLOATS, FUNCTIONS, METHODS, is_plain, make_module, shapes
from cigl.runtime.format.container import DTYPES, Damaged
from cigl.runtime.format.graph import LOGITS, Graph, Node, Ref
from cigl.runtime.format.tensors import named_tensors
from cigl.runtime.network.conditions import is_condition
from cigl.runtime.network.inputs import Signature

_DEEPEST = 8  # lists in lists
_MOST_INPUTS = 64
_MOST = 20_000  # nodes, modules that only hold others, parts of a signature; the largest models have a tenth of it
_LONGEST = 40  # names in the path of a module


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
    if kinds.count("output") != 1 or kinds[-1] != "output" or not 1 <= kinds.count("input") <= _MOST_INPUTS:
        raise Damaged(f"its graph does not lead from inputs, at most {_MOST_INPUTS}, to one output")
    output = nodes[-1].args[0]
    if temperature is not None and isinstance(output, dict) and LOGITS not in output:
        raise Damaged("it has a temperature, but no logits")
    _mark_last_uses(nodes)
    model = Graph(nodes, _signature(graph.get("signature", {}), nodes), temperature)
    _check_paths({node.name.rpartition(".")[0] for node in nodes if node.op in ("module", "tensor")})
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
        _check_calls(nodes, model)
        known = named_tensors(model)
        for path in dict.fromkeys(node.name for node in nodes if node.op == "tensor" and node.name not in known):
            place, _, name = path.rpartition(".")
            _give(_container(model, place), name, path, tensors, parameters, shared)
    except Damaged:
        raise
    except Exception as error:  # torch.nn refuses arguments in many ways
        raise Damaged(f"its graph has {' '.join(str(error).split())[:200]}") from error
    return model.eval()


def _check_calls(nodes: list[Node], model: nn.Module) -> None:
    """Each takes its arguments. Not every engine would notice: what nobody reads is not computed."""
    for number, node in enumerate(nodes):
        if node.op == "module":
            called: Any = type(model.get_submodule(node.name)).forward
            takes, arguments = _parameters_of(called), (None, *node.args)
        elif node.op == "function":
            takes, arguments = _parameters_of(FUNCTIONS[node.name]), node.args
        else:
            continue
        try:
            if takes is not None:
                takes.bind(*arguments, **node.kwargs)
        except TypeError as error:
            wrong = f"{node.op} {node.name}, is called with wrong arguments: {error}"
            raise Damaged(f"node {number} of its graph, {wrong}") from error


@lru_cache(maxsize=512)
def _parameters_of(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # most functions in C tell nothing
        return None


def _signature(data: Any, nodes: list[Node]) -> Signature:
    """How it is called; files of earlier versions have no names."""
    given = [node for node in nodes if node.op == "input"]
    inputs = [(node.name or f"input_{n}" if len(given) > 2 else node.name or "xy"[n], *node.args)
              for n, node in enumerate(given)]  # fmt: skip
    if data == {}:
        return Signature(inputs, list(dict.fromkeys(str(path[0]) for path in inputs)))
    checks: dict[str, tuple[type, Callable[[Any], bool]]] = {
        "order": (list, lambda name: isinstance(name, str)),
        "defaults": (dict, lambda name: _is_scalar(data["defaults"][name])),
        "fixed": (list, lambda f: isinstance(f, list) and len(f) == 2 and _is_path(f[0]) and _is_scalar(f[1])),
        "dtypes": (list, lambda name: name is None or (isinstance(name, str) and name in DTYPES)),
        "conditions": (list, is_condition),
    }
    for field, (kind, fits) in checks.items():
        right = isinstance(data, dict) and isinstance(data.get(field), kind) and len(data[field]) <= _MOST
        if not right or not all(map(fits, data[field])):
            raise Damaged("the signature of its graph is malformed")
    fixed = {tuple(path): value for path, value in data["fixed"]}
    dtypes = [None if name is None else DTYPES[name] for name in data["dtypes"]]
    return Signature(
        inputs, data["order"], data["defaults"], fixed, dtypes, data["conditions"], data.get("sized") is True
    )


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _is_path(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= _DEEPEST
        and isinstance(value[0], str)
        and all(type(key) in (str, int) for key in value)
    )


def _check_paths(places: set[str]) -> None:
    """Modules that hold others take much more memory than their names."""
    depths = [place.count(".") + 1 for place in places]
    if max(depths, default=0) > _LONGEST or sum(depths) > _MOST:
        raise Damaged(f"its modules are nested more than {_LONGEST} deep, or in more than {_MOST} others")


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


def _node(number: int, node: Any) -> Node:
    if not isinstance(node, dict):
        raise Damaged(f"node {number} of its graph is malformed")
    op, name = str(node.get("op")), node.get("name", "")
    args, kwargs = node.get("args", []), node.get("kwargs", {})
    known: dict[str, Callable[[str], bool]] = {
        "input": lambda name: _is_path([name, *args]),
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
    if op == "input":
        return Node(op, name, tuple(args), {}, [])
    decoded = {key: _decode(each, number) for key, each in kwargs.items()}
    return Node(op, name, tuple(_decode(each, number) for each in args), decoded, [])


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
            return Ref(content)
        if kind in ("dict", "named") and isinstance(content, dict):
            parts = {key: _decode(each, number, depth + 1) for key, each in content.items()}
            return Named(parts) if kind == "named" else parts
        if kind == "dtype" and isinstance(content, str) and content in DTYPES:
            return DTYPES[content]
        if kind == "float" and isinstance(content, str) and content in FLOATS:
            return FLOATS[content]
        if kind in ("tuple", "slice") and isinstance(content, list):
            each_one = [_decode(each, number, depth + 1) for each in content]
            if kind == "tuple":
                return tuple(each_one)
            if len(each_one) == 3:
                return slice(*each_one)
    raise Damaged(f"node {number} of its graph refers to a node that does not come before it")


def _mark_last_uses(nodes: list[Node]) -> None:
    seen: set[int] = set()
    for node in reversed(nodes):
        leaves: list[Any] = []
        map_aggregate([node.args, node.kwargs], leaves.append)
        refs = {leaf.node for leaf in leaves if isinstance(leaf, Ref)}
        node.last.extend(refs - seen)
        seen |= refs
