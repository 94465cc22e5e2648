"""A model in, plain data out: its operations as a graph of names, which decode.py makes a model from.

{"modules": {path: {"type": "Conv2d", "stride": [1, 1], ...}},
 "nodes": [{"op": "input"}, {"op": "module", "name": path, "args": [{"node": 0}]}, ...]}

Arguments are plain values, lists, and {"node": 3}, {"tuple": [...]}, {"slice": [...]}, {"dict": {...}}; a node refers
to nodes before it alone. Modules, functions and methods are those of allowed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from cigl.runtime.compile.tracing import Tracer, hooked
from cigl.runtime.format.allowed import FUNCTION_NAMES, METHODS, is_plain, make_module, module_fields, shapes
from cigl.runtime.format.tensors import named_tensors


class Unsupported(Exception):
    """An operation that a file can't hold, because the tables don't have it."""


def encode_graph(model: nn.Module) -> dict[str, Any]:
    """The graph of a model in eval mode, or ``Unsupported`` with the operation that a file can't hold."""
    _refuse_hooks("the model", model)
    if "forward" in vars(model):
        raise Unsupported("its forward is not that of its class")  # which is what torch.fx traces
    try:
        traced = Tracer().trace(model)
    except Exception as error:  # a user's forward can fail in any way on what is no tensor
        lines = str(error).splitlines() or [type(error).__name__]
        raise Unsupported(f"it can't be traced ({lines[0]})") from error
    modules: dict[str, Any] = {}
    nodes: list[dict[str, Any]] = []
    numbers: dict[fx.Node, int] = {}
    for node in traced.nodes:
        nodes.append(_node(node, model, modules, numbers))
        numbers[node] = len(numbers)
    return {"modules": modules, "nodes": nodes}


def _node(node: fx.Node, model: nn.Module, modules: dict[str, Any], numbers: Mapping[fx.Node, int]) -> dict[str, Any]:
    target: Any = node.target
    if node.op == "placeholder":
        if target.startswith("*"):
            raise Unsupported(f"it takes any number of inputs, {target}")
        return {"op": "input"}
    if node.op == "get_attr":
        if target not in named_tensors(model):
            raise Unsupported("a tensor is made while it runs")
        return {"op": "tensor", "name": target}
    if node.op == "call_module":
        kind, name = "module", target
        modules[target] = _module(target, model.get_submodule(target))
    elif node.op == "call_function":
        kind, name = "function", FUNCTION_NAMES.get(target, "")
    elif node.op == "call_method":
        kind, name = "method", target if target in METHODS else ""
    else:
        kind, name = "output", "output"
    if not name:
        raise Unsupported(f"the operation {getattr(target, '__name__', target)!r} is not among those a file can hold")
    found: dict[str, Any] = {"op": kind} if kind == "output" else {"op": kind, "name": name}
    found["args"] = [_encode(value, numbers) for value in node.args]
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
    raise Unsupported(f"the argument {str(value)[:40]!r} is not plain data")
