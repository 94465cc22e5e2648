"""ATen operations of an exported graph as the torch functions that people write, which the engine and files know.

Most have a function or a tensor's method of the same name and arguments; the rest is in the tables below. It holds for
graphs in which nothing is changed in place: there a copy is as good as its original.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

_END = 2**63 - 1  # of a slice that has none

# what export adds to check a model's assumptions; ours are the signature's conditions
_CHECKS = {
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
}
_THE_SAME = {"alias", "detach", "lift_fresh", "lift_fresh_copy", "clone", "contiguous", "positive"}
_CONVERSIONS = {"to", "_to_copy", "type_as"}
_WHERE = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy")  # arguments that change no value
_FUNCTIONAL = {
    name: getattr(F, name)
    for name in """silu mish hardswish hardsigmoid hardtanh relu6 elu leaky_relu softplus gelu linear pad one_hot
        scaled_dot_product_attention avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
        pixel_shuffle glu""".split()  # noqa: SIM905
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_FUNCTIONAL,
    "view": torch.reshape, "_unsafe_view": torch.reshape, "__and__": torch.bitwise_and,
    "__or__": torch.bitwise_or, "__xor__": torch.bitwise_xor,
}  # fmt: skip
_METHODS = {
    "expand",
    "expand_as",
    "repeat",
    "masked_fill",
    "new_ones",
    "new_zeros",
    "new_full",
    "view_as",
    "reshape_as",
}


def translate(graph: fx.Graph) -> None:
    """All of the graph's ATen operations that have a torch function, in place."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.namespace != "aten":
            continue
        name = node.target._schema.name.partition("::")[2]
        if name in _CHECKS:
            graph.erase_node(node)
        elif (same := _without_effect(name, node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        else:
            _translate(name, node)


def _without_effect(name: str, node: fx.Node) -> fx.Node | None:
    """The node whose value this one's is, too."""
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if name in _THE_SAME or (name == "dropout" and node.args[2] is False):
        return source
    if source is not None and name in _CONVERSIONS and _dtype(source) == _dtype(node):
        return source
    if source is not None and name == "slice":
        _, start, end, step = _slice(node)
        if start in (0, None) and end is None and step == 1:
            return source
    return None


def _slice(node: fx.Node) -> tuple[Any, Any, Any, Any]:
    """Dimension, start, end and step of ATen's slice."""
    given: list[Any] = [*node.args[1:]]
    dim, start, end, step = given + [0, None, _END, 1][len(given) :]
    return dim, start, None if end == _END else end, step


def _translate(name: str, node: fx.Node) -> None:
    node.args = tuple(None if type(each) is int and each == _END else each for each in node.args)
    node.kwargs = {key: value for key, value in node.kwargs.items() if key not in _WHERE}
    if name == "sym_size":
        _become(node, "size")
    elif name in _CONVERSIONS:
        _become(node, "to", (node.args[0], _dtype(node)), {})
    elif name == "slice":
        x: Any = node.args[0]
        dim, start, end, step = _slice(node)
        before = (slice(None),) * (dim % x.meta["val"].dim())
        part: Any = slice(None if start == 0 else start, end, None if step == 1 else step)
        _become(node, operator.getitem, (x, (*before, part)), {})
    elif name == "copy" and _dtype(node) == _dtype(node.args[1]):  # of another tensor's values
        _become(node, "expand_as", (node.args[1], node.args[0]), {})
    elif name == "index":
        places: Any = tuple(slice(None) if each is None else each for each in node.args[1])  # type: ignore[union-attr]
        _become(node, operator.getitem, (node.args[0], places), {})
    elif name in _FUNCTIONS:
        _become(node, _FUNCTIONS[name])
    elif name in _METHODS:
        _become(node, name)
    elif callable(function := getattr(torch, name, None)) and not isinstance(function, type):
        _become(node, function)
    elif hasattr(Tensor, name):
        _become(node, name)


def _become(node: fx.Node, target: Any, args: Any = None, kwargs: Any = None) -> None:
    node.op = "call_method" if isinstance(target, str) else "call_function"
    node.target = target
    if args is not None:
        node.args, node.kwargs = args, kwargs


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None
