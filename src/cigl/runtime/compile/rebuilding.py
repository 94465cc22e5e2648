"""Layers from calls of functions: ``F.linear(x, self.weight)`` becomes a call of an ``nn.Linear``.

A graph may hold a layer as a function of a model's tensors: because the model was exported, calls F.linear itself, or
is a bare layer. Afterwards the rest of the compiler has to know modules alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from cigl.runtime.compile.capture import attribute

REBUILT = "rebuilt_layers"


def rebuild(model: nn.Module, graph: fx.Graph) -> None:
    """Replace such calls, where their weights are the model's own; the layers go into a submodule of ``model``."""
    layers = nn.ModuleList()
    model.add_module(REBUILT, layers)
    made: dict[Any, str] = {}
    constants = _Constants(model, graph)
    for node in list(graph.nodes):
        call = _CALLS.get(node.target) if node.op in ("call_function", "call_method") else None
        if call is None:
            continue
        try:
            x, make, tensors, fields = call(*node.args, **node.kwargs)
            _need(isinstance(x, fx.Node) and x not in constants)
            _need(all(each is x or each in constants for each in node.all_input_nodes))
            values = [None if each is None else constants.tensor(each) for each in tensors]
            key = (make, tuple(map(_identity, values)), repr(fields))
            if key not in made:
                layers.append(make(*values, **fields))
                made[key] = f"{REBUILT}.{len(layers) - 1}"
        except Exception:  # arguments that torch.nn doesn't take are torch's to refuse, when the graph is called
            continue
        with graph.inserting_before(node):
            called = graph.create_node("call_module", made[key], (x,))
        called.meta |= node.meta
        called.meta["name"] = constants.owner(tensors[0]) or node.name
        node.replace_all_uses_with(called)
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):  # what only led to weights
        if not node.users and node in constants:
            graph.erase_node(node)


class _Constants:
    """The nodes whose values are tensors of the model: attributes, and matrices transposed, in the same memory."""

    def __init__(self, model: nn.Module, graph: fx.Graph):
        self._known: dict[fx.Node, tuple[fx.Node, Tensor]] = {}  # the attribute, and the value
        for node in graph.nodes:
            if node.op == "get_attr":
                found = attribute(model, str(node.target))
                if isinstance(found, Tensor):
                    self._known[node] = (node, found)
            elif _is_transposed(node) and (known := self._known.get(node.all_input_nodes[0])) is not None:
                try:
                    self._known[node] = (known[0], _transposed(node, known[1]))
                except Exception:  # wrong arguments, which are torch's to refuse
                    continue

    def __contains__(self, node: Any) -> bool:
        return node in self._known

    def tensor(self, node: Any) -> Tensor:
        _need(node in self._known)
        return self._known[node][1]

    def owner(self, node: Any) -> str:
        """The path of the module whose weight it is; of other tensors their own, and nothing for a bare layer."""
        path = str(self._known[node][0].target)
        return "" if path == "weight" else path.removesuffix(".weight")


def _is_transposed(node: fx.Node) -> bool:
    called = node.op in ("call_function", "call_method") and len(node.all_input_nodes) == 1
    return called and (node.target in _TRANSPOSES or (node.target is getattr and node.args[1:] in (("T",), ("mT",))))


_TRANSPOSES = ("t", "transpose", "permute", "contiguous", "detach", torch.t, torch.transpose, torch.permute)


def _transposed(node: fx.Node, matrix: Tensor) -> Tensor:
    if node.target in ("contiguous", "detach"):
        return matrix
    _need(matrix.dim() == 2)
    function: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target
    result = function(*(matrix if isinstance(each, fx.Node) else each for each in node.args), **node.kwargs)
    _need(isinstance(result, Tensor))
    return result  # type: ignore[no-any-return]


def _identity(tensor: Tensor | None) -> Any:
    """What two views of the same numbers have in common."""
    return None if tensor is None else (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


class _Other(Exception):
    """A call that is no layer of torch.nn."""


Found = tuple[Any, Callable[..., nn.Module], tuple[Any, ...], dict[str, Any]]  # input, maker, tensors, settings


def _given(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """Made on the meta device, and given the tensors that there are."""
    for name, tensor in tensors.items():
        is_buffer = name in layer._buffers
        held: dict[str, Any] = layer._buffers if is_buffer else layer._parameters
        _need(tensor is None or tensor.shape == held[name].shape)
        held[name] = tensor if tensor is None or is_buffer else nn.Parameter(tensor, requires_grad=False)
    return layer.eval()


def _linear(input: Any, weight: Any, bias: Any = None) -> Found:
    return input, _make_linear, (weight, bias), {}


def _matmul(input: Any, other: Any) -> Found:
    return input, _make_linear, (other, None), {"transposed": True}


def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Found:
    _need(beta == 1 and alpha == 1)
    return mat1, _make_linear, (mat2, input), {"transposed": True}


def _make_linear(weight: Tensor, bias: Tensor | None, transposed: bool = False) -> nn.Module:
    weight = weight.t() if transposed else weight
    outputs, inputs = weight.shape
    return _given(nn.Linear(inputs, outputs, device="meta"), weight=weight, bias=bias)


def _conv(kind: type[Any], *settings: str) -> Callable[..., Found]:
    """``settings`` are the function's arguments behind the bias, in their order."""
    transposed = kind.__name__.startswith("ConvTranspose")

    def make(weight: Tensor, bias: Tensor | None, groups: int = 1, **sizes: Any) -> nn.Module:
        first, second = int(weight.shape[0]), int(weight.shape[1]) * groups
        channels = (first, second) if transposed else (second, first)
        layer = kind(*channels, tuple(weight.shape[2:]), groups=groups, device="meta", **sizes)
        return _given(layer, weight=weight, bias=bias)

    def call(input: Any, weight: Any, bias: Any = None, *given: Any, **named: Any) -> Found:
        _need(len(given) <= len(settings) and set(named) <= set(settings[len(given) :]))
        fields = dict(zip(settings, given, strict=False)) | named
        return input, make, (weight, bias), {name: _size(value) for name, value in fields.items()}

    return call


def _size(value: Any) -> Any:
    """As a module has it: one number, or one for each dimension."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(value) if len(value) > 1 else value[0]


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Found:
    _need(training is False and running_mean is not None and running_var is not None)
    return input, _make_batch_norm, (running_mean, running_var, weight, bias), {"eps": eps}


def _make_batch_norm(mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> nn.Module:
    layer = nn.BatchNorm2d(mean.numel(), eps, device="meta")
    return _given(layer, running_mean=mean, running_var=var, weight=weight, bias=bias, num_batches_tracked=None)


def _aten_batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, var: Any, training: Any, momentum: Any, eps: Any, cudnn: Any
) -> Found:
    return _batch_norm(input, mean, var, weight, bias, training, momentum, eps)


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enable: Any = True
) -> Found:
    _need(weight is not None)
    return input, _make_layer_norm, (weight, bias), {"shape": tuple(normalized_shape), "eps": eps}


def _make_layer_norm(weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], eps: float) -> nn.Module:
    return _given(nn.LayerNorm(shape, eps, device="meta"), weight=weight, bias=bias)


def _need(condition: bool) -> None:
    if not condition:
        raise _Other


_SIZES = ("stride", "padding", "dilation", "groups")
_TURNED_SIZES = ("stride", "padding", "output_padding", "groups", "dilation")
_CALLS: dict[Any, Callable[..., Found]] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.mm, operator.matmul, "matmul", "mm"), _matmul),
    **dict.fromkeys((torch.addmm, "addmm"), _addmm),
    F.batch_norm: _batch_norm,
    torch.batch_norm: _aten_batch_norm,
    **dict.fromkeys((F.layer_norm, torch.layer_norm), _layer_norm),
    **{getattr(F, f"conv{n}d"): _conv(getattr(nn, f"Conv{n}d"), *_SIZES) for n in (1, 2, 3)},
    **{getattr(F, f"conv_transpose{n}d"): _conv(getattr(nn, f"ConvTranspose{n}d"), *_TURNED_SIZES) for n in (1, 2, 3)},
}
