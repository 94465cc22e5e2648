"""Which traced calls the engine knows, and as what operation.

Every parser has the signature of the torch function it reads, so that python itself sorts out the arguments. It returns
the operation and the nodes that it reads; a TypeError says that the call is outside of what the kernels do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from cigl.runtime.network import operations as op
from cigl.runtime.network.weights import Weight

Parsed = tuple[op.Operation, list[fx.Node]]

RESHAPES = {torch.flatten, torch.reshape, "flatten", "reshape", "view"}
ASKS_SHAPE = {"size", "dim", "numel"}
IN_PLACE = {
    operator.iadd, operator.isub, operator.imul, operator.imatmul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift,
    operator.setitem,
}  # fmt: skip


# calls whose results share no memory with what they read
NEW = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.neg, torch.cat, torch.stack,
    torch.add, torch.sub, torch.mul, torch.div, torch.matmul, torch.bmm, torch.mean, torch.sum, torch.softmax,
    torch.sigmoid, torch.tanh, torch.batch_norm, torch.layer_norm, F.linear, F.conv1d, F.conv2d, F.conv3d,
    F.conv_transpose2d, F.batch_norm, F.layer_norm, F.group_norm, F.gelu, F.silu, F.hardswish, F.hardsigmoid,
    F.softmax, F.embedding, F.interpolate, F.scaled_dot_product_attention, F.max_pool2d, F.avg_pool2d,
    F.adaptive_avg_pool2d, "mean", "sum", "softmax", "sigmoid", "tanh", "clone", "add", "mul", "matmul",
}  # fmt: skip
_NEW_MODULES = ("conv", "linear", "batchnorm", "normalization", "pooling", "activation", "upsampling", "sparse")


def makes_new(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a call certainly returns memory of its own. (One in place does not.)"""
    if module is None:
        return node.target in NEW
    place, _, file = type(module).__module__.rpartition(".")
    return place == "torch.nn.modules" and file in _NEW_MODULES and not isinstance(module, nn.MultiheadAttention)


def parse(node: fx.Node, module: nn.Module | None) -> Parsed | None:
    """The operation of a call, if the engine knows it."""
    try:
        if module is not None:
            plain = not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
            return _MODULES[_kind(module)](module, *node.args, **node.kwargs) if plain else None
        calls: dict[Any, Callable[..., Parsed]] = _METHODS if node.op == "call_method" else _FUNCTIONS
        return calls[node.target](*node.args, **node.kwargs)
    except (KeyError, TypeError):
        return None


def is_known(module: nn.Module) -> bool:
    """Whether it is a module of these tables, or a subclass of one that computes the same."""
    return _kind(module) in _MODULES and not module._modules


def _kind(module: nn.Module) -> type[nn.Module]:
    """The class of torch's that computes it: of a subclass that keeps its methods, the parent."""
    kind = type(module)
    for parent in kind.__mro__:
        if parent in _MODULES and all(getattr(kind, name) is method for name, method in _methods(parent)):
            return parent
    return kind


def _methods(kind: type[nn.Module]) -> list[tuple[str, Any]]:
    return [(name, getattr(kind, name)) for name in ("forward", "_conv_forward") if hasattr(kind, name)]


def _only_if(known: bool) -> None:
    if not known:
        raise TypeError


def _node(x: Any) -> fx.Node:
    _only_if(isinstance(x, fx.Node))
    return x  # type: ignore[no-any-return]


def _pair(size: Any) -> op.Pair:
    sizes = list(size) if isinstance(size, Sequence) else [size]
    _only_if(len(sizes) in (1, 2) and all(type(s) is int for s in sizes))
    return sizes[0], sizes[-1]


def _identity(input: Any, p: Any = None, training: Any = False, inplace: Any = False) -> Parsed:
    _only_if(training is False)
    return op.Identity(), [_node(input)]


def _dropout(module: nn.Dropout, input: Any) -> Parsed:
    return _identity(input, training=module.training and module.p > 0)


def _relu(input: Any) -> Parsed:
    return op.Relu(), [_node(input)]


def _activation(name: str) -> Callable[..., Parsed]:
    return lambda input: (op.Activation(name), [_node(input)])


def _or_in_place(parser: Callable[..., Parsed]) -> Callable[..., Parsed]:
    """For the functions that take ``inplace``."""

    def parsed(input: Any, inplace: Any = False) -> Parsed:
        _only_if(type(inplace) is bool)
        return parser(input)

    return parsed


def _gelu(input: Any, approximate: Any = "none") -> Parsed:
    _only_if(approximate in ("none", "tanh"))
    return op.Activation("gelu" if approximate == "none" else "gelu_tanh"), [_node(input)]


def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False) -> Parsed:
    _only_if(type(inplace) is bool)
    return _clamp(input, min_val, max_val)


def _clamp(input: Any, min: Any = None, max: Any = None) -> Parsed:
    _only_if(min == 0 and max == 6)
    return op.Activation("relu6"), [_node(input)]


def _multiply(input: Any, other: Any) -> Parsed:
    return op.Multiply(), [_node(input), _node(other)]


def _concat(tensors: Any, dim: Any = 0) -> Parsed:
    _only_if(isinstance(tensors, Sequence) and type(dim) is int and len(tensors) > 0)
    return op.Concat(dim, len(tensors)), [_node(each) for each in tensors]


def _softmax(input: Any, dim: Any = None, dtype: Any = None) -> Parsed:
    _only_if(type(dim) is int and dtype is None)
    return op.Softmax(dim), [_node(input)]


def _layer_norm(module: nn.LayerNorm, input: Any) -> Parsed:
    _only_if(len(module.normalized_shape) == 1)
    weight, bias = (None if each is None else each.detach() for each in (module.weight, module.bias))
    return op.LayerNorm(module.normalized_shape[0], weight, bias, module.eps), [_node(input)]


def _add(input: Any, other: Any, *, alpha: Any = 1) -> Parsed:
    _only_if(alpha == 1)
    return op.Add(), [_node(input), _node(other)]


def _max_pool(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
) -> Parsed:
    _only_if(_pair(dilation) == (1, 1) and ceil_mode is False and return_indices is False)
    kernel = _pair(kernel_size)
    return op.MaxPool(kernel, _pair(stride) if stride else kernel, _pair(padding)), [_node(input)]


def _avg_pool(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
    divisor_override: Any = None,
) -> Parsed:
    _only_if(ceil_mode is False and type(count_include_pad) is bool and divisor_override is None)
    kernel = _pair(kernel_size)
    pool = op.AvgPool(kernel, _pair(stride) if stride else kernel, _pair(padding), count_include_pad)
    return pool, [_node(input)]


def _adaptive_avg_pool(input: Any, output_size: Any) -> Parsed:
    _only_if(_pair(output_size) == (1, 1))
    return op.Mean(), [_node(input)]


def _mean(input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Parsed:
    _only_if(isinstance(dim, Sequence) and len(dim) == 2 and type(keepdim) is bool and dtype is None)
    return op.Mean(_pair(dim), keepdim), [_node(input)]


def _conv(module: nn.Conv1d | nn.Conv2d, input: Any) -> Parsed:
    """One of one dimension is a convolution of pictures of height 1."""
    _only_if(module.padding_mode == "zeros")
    line, weight = isinstance(module, nn.Conv1d), module.weight
    kernel, stride, dilation = _pair(module.kernel_size), _pair(module.stride), _pair(module.dilation)
    if module.padding == "same":  # for an even kernel torch pads one side more
        _only_if(all(size % 2 for size in kernel))
        padding = (dilation[0] * (kernel[0] // 2), dilation[1] * (kernel[1] // 2))
    else:
        padding = (0, 0) if module.padding == "valid" else _pair(module.padding)
    if line:
        weight, stride, padding, dilation = weight[:, :, None], (1, stride[1]), (0, padding[1]), (1, dilation[1])
    conv = op.Conv(Weight(weight, module.bias), stride, padding, dilation, module.groups)
    return op.OnLine(conv) if line else conv, [_node(input)]


def _conv_transpose(module: nn.ConvTranspose2d, input: Any) -> Parsed:
    _only_if(module.groups == 1 and _pair(module.dilation) == (1, 1) and module.padding_mode == "zeros")
    places = [_pair(each) for each in (module.stride, module.padding, module.output_padding)]
    return op.ConvTranspose.made(module.weight.detach(), module.bias, *places), [_node(input)]


def _pool_line(pool: Callable[..., Parsed]) -> Callable[..., Parsed]:
    """A pooling over pictures of height 1."""

    def parsed(module: nn.Module, input: Any) -> Parsed:
        found: Any
        found, reads = pool(module, input)
        kernel, stride, padding = (1, found.kernel[1]), (1, found.stride[1]), (0, found.padding[1])
        return op.OnLine(replace(found, kernel=kernel, stride=stride, padding=padding)), reads

    return parsed


def _linear(module: nn.Linear, input: Any) -> Parsed:
    return op.Linear(Weight(module.weight, module.bias)), [_node(input)]


def _norm(module: nn.BatchNorm1d | nn.BatchNorm2d, input: Any) -> Parsed:
    if module.training:
        return op.BatchNorm(), [_node(input)]
    mean, var = module.running_mean, module.running_var
    if mean is None or var is None:
        raise TypeError
    scale = (var.double() + module.eps).rsqrt() * (1 if module.weight is None else module.weight.double())
    shift = (0 if module.bias is None else module.bias.double()) - mean.double() * scale
    return op.Norm(scale.float().detach(), shift.float().detach()), [_node(input)]


def _calls(parser: Callable[..., Parsed], fields: str = "") -> Callable[..., Parsed]:
    """Of a module that calls the function with these attributes of its own."""
    return lambda module, input: parser(input, *(getattr(module, name) for name in fields.split()))


_MAX_POOL = "kernel_size stride padding dilation ceil_mode return_indices"
_AVG_POOL = "kernel_size stride padding ceil_mode count_include_pad"
_ACTIVATIONS = ("ReLU6", "SiLU", "Hardsigmoid", "Hardswish", "Mish")
_MODULES: dict[type[nn.Module], Callable[..., Parsed]] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _conv),
    nn.ConvTranspose2d: _conv_transpose,
    nn.Linear: _linear,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _norm),
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _calls(_relu),
    **{getattr(nn, name): _calls(_activation(name.lower())) for name in ("Sigmoid", "Tanh", *_ACTIVATIONS)},
    nn.GELU: _calls(_gelu, "approximate"),
    nn.Softmax: _calls(_softmax, "dim"),
    nn.MaxPool1d: _pool_line(_calls(_max_pool, _MAX_POOL)),
    nn.MaxPool2d: _calls(_max_pool, _MAX_POOL),
    nn.AvgPool1d: _pool_line(_calls(_avg_pool, _AVG_POOL)),
    nn.AvgPool2d: _calls(_avg_pool, f"{_AVG_POOL} divisor_override"),
    nn.AdaptiveAvgPool2d: _calls(_adaptive_avg_pool, "output_size"),
    nn.Identity: _calls(_identity),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d), _dropout),
}

_FUNCTIONS: dict[Any, Callable[..., Parsed]] = {
    F.relu: _or_in_place(_relu),
    **dict.fromkeys((F.relu_, torch.relu, torch.relu_), _relu),
    **dict.fromkeys((torch.sigmoid, F.sigmoid), _activation("sigmoid")),
    **dict.fromkeys((torch.tanh, F.tanh), _activation("tanh")),
    **{getattr(F, name.lower()): _or_in_place(_activation(name.lower())) for name in _ACTIVATIONS},
    F.gelu: _gelu,
    F.hardtanh: _hardtanh,
    torch.clamp: _clamp,
    **dict.fromkeys((operator.mul, operator.imul, torch.mul), _multiply),
    **dict.fromkeys((torch.cat, torch.concat), _concat),
    torch.softmax: _softmax,
    F.softmax: lambda input, dim=None, _stacklevel=3, dtype=None: _softmax(input, dim, dtype),
    **dict.fromkeys((operator.add, operator.iadd, torch.add), _add),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _max_pool),
    F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_avg_pool,
    torch.mean: _mean,
    F.dropout: lambda input, p=0.5, training=True, inplace=False: _identity(input, p, training, inplace),
}

_METHODS: dict[Any, Callable[..., Parsed]] = {
    **dict.fromkeys(("relu", "relu_"), _relu),
    **dict.fromkeys(("sigmoid", "sigmoid_"), _activation("sigmoid")),
    **dict.fromkeys(("tanh", "tanh_"), _activation("tanh")),
    **dict.fromkeys(("clamp", "clamp_"), _clamp),
    **dict.fromkeys(("mul", "mul_"), _multiply),
    "softmax": _softmax,
    **dict.fromkeys(("add", "add_"), _add),
    "mean": _mean,
}
