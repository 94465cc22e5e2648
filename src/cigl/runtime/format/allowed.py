"""The operations that a file's graph may name: fixed tables, and what their arguments may be.

Whatever is listed here is safe to run for a file of unknown origin: it computes tensors from tensors, and nothing else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.common.text import one_line

_LARGEST = 2**31 - 1

# What a module is made from: arguments of its constructor, which are also its attributes.
_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_CONV_TRANSPOSE = _CONV.replace("dilation", "output_padding dilation")
_NORM = "num_features eps momentum affine track_running_stats"
_MAX_POOL = "kernel_size stride padding dilation return_indices ceil_mode"
_RECURRENT = "input_size hidden_size num_layers bias batch_first dropout bidirectional"
MODULES: dict[str, str] = {
    "Linear": "in_features out_features bias",
    "Conv1d": _CONV, "Conv2d": _CONV, "Conv3d": _CONV,
    "BatchNorm1d": _NORM, "BatchNorm2d": _NORM, "BatchNorm3d": _NORM,
    "LayerNorm": "normalized_shape eps elementwise_affine bias", "GroupNorm": "num_groups num_channels eps affine",
    "ReLU": "inplace", "ReLU6": "inplace", "SiLU": "inplace", "Hardswish": "inplace", "Hardsigmoid": "inplace",
    "Mish": "inplace", "LeakyReLU": "negative_slope inplace", "ELU": "alpha inplace", "GELU": "approximate",
    "PReLU": "num_parameters", "Sigmoid": "", "Tanh": "", "Identity": "", "Softmax": "dim", "LogSoftmax": "dim",
    "MaxPool1d": _MAX_POOL, "MaxPool2d": _MAX_POOL,
    "AvgPool1d": "kernel_size stride padding ceil_mode count_include_pad",
    "AvgPool2d": "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "AdaptiveAvgPool1d": "output_size", "AdaptiveAvgPool2d": "output_size", "AdaptiveMaxPool2d": "output_size",
    "Flatten": "start_dim end_dim", "ZeroPad2d": "padding",
    "Dropout": "p inplace", "Dropout1d": "p inplace", "Dropout2d": "p inplace",
    "Embedding": "num_embeddings embedding_dim padding_idx",
    "ConvTranspose1d": _CONV_TRANSPOSE, "ConvTranspose2d": _CONV_TRANSPOSE, "ConvTranspose3d": _CONV_TRANSPOSE,
    "Upsample": "size scale_factor mode align_corners", "RMSNorm": "normalized_shape eps elementwise_affine",
    "LSTM": f"{_RECURRENT} proj_size", "GRU": _RECURRENT,
    "Softplus": "beta threshold", "PixelShuffle": "upscale_factor", "Unflatten": "dim unflattened_size",
}  # fmt: skip


def _whole(low: int, high: int = _LARGEST) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _whole_or_several(low: int, high: int = 2**15) -> Callable[[Any], bool]:
    one = _whole(low, high)
    return lambda value: one(value) or (isinstance(value, tuple) and 1 <= len(value) <= 4 and all(map(one, value)))


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30  # which NaN is not, and 10**400 can be asked for


def _among(*known: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(each) and value == each for each in known)


def _any(*checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)


_INTERPOLATIONS = ("nearest", "linear", "bilinear", "bicubic", "trilinear", "nearest-exact")
_PADDINGS = ("reflect", "replicate", "circular")
_FLAG, _COUNT, _DIM, _NONE = _among(True, False), _whole(0), _whole(-16, 16), _among(None)
_SIZE = _any(_whole(1, 2**15), _NONE)
_FACTOR = _any(lambda value: _number(value) and 0 < value <= 1024, _NONE)
_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("in_features", "out_features", "in_channels", "out_channels", "num_features"), _COUNT),
    **dict.fromkeys(("num_channels", "num_groups", "num_parameters", "groups"), _whole(1)),
    **dict.fromkeys(("kernel_size", "stride", "dilation"), _whole_or_several(1)),
    **dict.fromkeys(("bias", "affine", "track_running_stats", "elementwise_affine", "inplace"), _FLAG),
    **dict.fromkeys(("ceil_mode", "count_include_pad", "batch_first", "bidirectional"), _FLAG),
    **dict.fromkeys(("input_size", "hidden_size"), _whole(1)), "proj_size": _COUNT, "num_layers": _whole(1, 64),
    **dict.fromkeys(("eps", "negative_slope", "alpha"), _any(_number, _NONE)),
    **dict.fromkeys(("start_dim", "end_dim"), _DIM),
    **dict.fromkeys(("num_embeddings", "embedding_dim"), _COUNT),
    "padding_idx": _any(_whole(0), _NONE), "output_padding": _whole_or_several(0),
    "size": _any(_SIZE, _whole_or_several(1)), "align_corners": _among(None, True, False),
    "scale_factor": _any(_FACTOR, lambda each: isinstance(each, tuple) and len(each) < 4 and all(map(_FACTOR, each))),
    "mode": _among(*_INTERPOLATIONS),
    **dict.fromkeys(("beta", "threshold"), _number), "upscale_factor": _whole(1, 2**10),
    "unflattened_size": lambda value: isinstance(value, tuple) and 1 <= len(value) <= 8 and all(map(_whole(-1), value)),
    "padding": _any(_whole_or_several(0), _among("same", "valid")),
    "padding_mode": _among("zeros", *_PADDINGS),
    "approximate": _among("none", "tanh"),
    "momentum": _any(_number, _NONE), "dim": _any(_DIM, _NONE), "divisor_override": _any(_whole(1), _NONE),
    **dict.fromkeys(("p", "dropout"), lambda value: _number(value) and 0 <= value <= 1),
    "return_indices": _among(False),
    "normalized_shape": _whole_or_several(1, _LARGEST),
    "output_size": _any(_SIZE, lambda value: isinstance(value, tuple) and len(value) == 2 and all(map(_SIZE, value))),
}  # fmt: skip


def module_fields(module: nn.Module) -> dict[str, Any] | None:
    """The arguments that make the module, as JSON; None if its type is not in the table."""
    kind = type(module).__name__
    if kind not in MODULES or type(module) is not getattr(nn, kind) or "forward" in vars(module):
        return None
    fields: dict[str, Any] = {"type": kind}
    for name in MODULES[kind].split():
        value = getattr(module, name)
        if name == "bias":  # a tensor or None, but a flag in recurrent modules
            value = isinstance(value, Tensor) or value is True
        fields[name] = list(value) if isinstance(value, tuple) else value
    return fields


def make_module(fields: Any) -> nn.Module:
    """The module, without memory for its tensors; a ValueError if it can't be one."""
    if not isinstance(fields, dict) or fields.get("type") not in MODULES:
        raise ValueError("a module of an unknown type")
    kind, names = fields["type"], MODULES[fields["type"]].split()
    arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items() if name != "type"}
    if set(arguments) != set(names):
        raise ValueError(f"a {kind} with other arguments than {', '.join(names)}")
    for name, value in arguments.items():
        if not _FIELDS[name](value):
            raise ValueError(f"a {kind} whose {name} can't be {str(value)[:40]}")
    try:
        with torch.device("meta"):
            module: nn.Module = getattr(nn, kind)(**arguments)
    except Exception as error:  # torch.nn has asserts, too
        raise ValueError(f"a {kind} of which torch says: {one_line(error)}") from error
    return module


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of all of the module's tensors."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


# Functions and methods

STRINGS = frozenset(
    ("shape", "ndim", "constant", *_INTERPOLATIONS, *_PADDINGS, "none", "tanh", "floor", "trunc", "same", "valid")
)


def _listed(place: Any, names: str) -> dict[str, Callable[..., Any]]:
    return {f"{place.__name__}.{name}": getattr(place, name) for name in names.split()}


def _attribute(tensor: Any, name: str) -> Any:
    if name not in ("shape", "ndim"):
        raise CiglError(f"the attribute {str(name)[:40]!r} of a tensor is asked for, and only shape and ndim may be")
    return getattr(tensor, name)


def _arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of tensors and numbers alone: a sequence times a number, or ever larger numbers, would fill the memory."""

    def compute(*operands: Any) -> Any:
        for each in operands:
            if not isinstance(each, (Tensor, float)) and not (isinstance(each, int) and abs(each) < 2**63):
                raise CiglError(f"a {type(each).__name__} or a number out of range is computed with")
        return function(*operands)

    return compute


_OPERATORS = _listed(
    operator, "add sub mul truediv floordiv neg iadd isub imul itruediv ifloordiv mod eq ne lt le gt ge and_ or_"
) | {"operator.matmul": operator.matmul}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_listed(torch, """add sub mul div neg cat stack mean sum amax flatten reshape permute transpose squeeze
        unsqueeze chunk split relu relu_ sigmoid tanh softmax log_softmax clamp exp sqrt rsqrt abs square matmul
        addmm mm bmm baddbmm einsum layer_norm batch_norm group_norm embedding conv1d conv2d conv3d conv_transpose1d
        conv_transpose2d conv_transpose3d max_pool1d max_pool2d prelu select narrow index_select gather unbind
        unflatten arange full zeros ones zeros_like ones_like full_like scalar_tensor where tril triu cumsum roll flip
        ge gt le lt eq ne bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_not isnan pow
        cos sin log erf min max minimum maximum floor ceil round remainder floor_divide reciprocal argmax any all var
        std amin prod repeat_interleave movedim swapaxes outer dropout masked_fill rms_norm sym_max sym_min
        fill select_scatter slice_scatter index_put scatter"""),
    **_listed(F, """linear conv1d conv2d batch_norm layer_norm group_norm relu relu_ relu6 gelu silu hardswish
        hardsigmoid hardtanh mish elu leaky_relu prelu sigmoid tanh softmax log_softmax softplus max_pool2d avg_pool2d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d dropout dropout2d pad normalize embedding one_hot
        scaled_dot_product_attention interpolate conv3d conv_transpose1d conv_transpose2d conv_transpose3d avg_pool1d
        max_pool1d instance_norm rms_norm pixel_shuffle glu"""),
    **_OPERATORS,
    "operator.getitem": operator.getitem,
    "getattr": getattr,
}  # fmt: skip
FUNCTION_NAMES = {function: name for name, function in reversed(_FUNCTIONS.items())}
RECORDED = _FUNCTIONS  # in a graph that the engine compiles
# What is run: the same, except for those that could do more than compute.
FUNCTIONS = _FUNCTIONS | {name: _arithmetic(each) for name, each in _OPERATORS.items()} | {"getattr": _attribute}
METHODS = frozenset(
    """abs add add_ amax argmax bmm chunk clamp contiguous cos cumsum detach dim div div_ eq exp expand expand_as
    flatten flip float ge gt index_select le log log_softmax long lt masked_fill matmul max mean min mul mul_ ne neg
    new_full new_ones new_zeros numel permute pow relu relu_ repeat reshape reshape_as rsqrt select sigmoid sin size
    softmax split sqrt square squeeze sub sub_ sum t tanh to transpose triu tril type_as unbind unflatten unsqueeze
    view view_as
    """.split()  # noqa: SIM905
)


FLOATS = {str(value): value for value in (math.inf, -math.inf)}


def is_plain(value: Any) -> bool:
    """What a function may be given besides tensors, and lists of such."""
    if isinstance(value, str):
        return value in STRINGS
    if type(value) is int:
        return abs(value) < 2**31
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))
