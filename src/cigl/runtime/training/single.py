"""Single layers on sparse kernels, in parts of a model that torch runs as they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Unit
from cigl.runtime.network.weights import Weight
from cigl.runtime.program.steps import per_image
from cigl.runtime.training.capture.attention import mix_heads
from cigl.runtime.training.network import is_plain
from cigl.runtime.training.rule import is_worth
from cigl.runtime.training.subgraph import Subgraph
from cigl.runtime.training.weights import Patterns

_SHAPES = 6  # of inputs, whose programs are kept; the one not used for longest goes first


class SingleLayer:
    """A weight [O, I] or [O, I, kh, kw] that is applied to one input."""

    def __init__(self, module: nn.Module, patterns: Patterns, insist: bool, weight: str = "weight", bias: str = "bias"):
        self._module, self._patterns, self._insist = module, patterns, insist
        self._names = weight, bias
        self._own = self._tensors()
        self._subgraphs: OrderedDict[Any, Subgraph | None] = OrderedDict()
        self._version = patterns.version

    def _tensors(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        return getattr(self._module, self._names[0]), getattr(self._module, self._names[1])

    @property
    def weight(self) -> nn.Parameter:
        return getattr(self._module, self._names[0])  # type: ignore[no-any-return]

    def subgraph(self, x: Tensor) -> Subgraph | None:
        """For an input like this one, or None where torch is faster or the kernels can't."""
        tensors = self._tensors()
        if any(now is not own for now, own in zip(tensors, self._own, strict=True)):
            return None  # for one call (torch.func.functional_call), or for good
        threads = torch.get_num_threads()
        kinds = tuple(t is not None and (t.requires_grad, t.stride(), t.dtype) for t in tensors)
        if self._version != self._patterns.version:  # a program of an earlier topology only takes memory
            self._subgraphs.clear()
            self._version = self._patterns.version
        key = (x.shape, kinds, threads)
        if key not in self._subgraphs:
            self._subgraphs[key] = self._make(x, threads)
            if len(self._subgraphs) > _SHAPES:
                self._subgraphs.popitem(last=False)
        self._subgraphs.move_to_end(key)
        return self._subgraphs[key]

    def release(self) -> None:
        for subgraph in self._subgraphs.values():
            if subgraph is not None:
                subgraph.release()
        self._subgraphs.clear()

    def _make(self, x: Tensor, threads: int) -> Subgraph | None:
        operation, output = self._operation(x)
        if operation is None or not is_plain(self._module) or not x.numel():
            return None
        weight = self.weight
        dense = op.multiply_adds(weight.numel(), weight.shape[0], output)
        sparse, images = dense * self._patterns.density(weight), per_image(x.shape)[0]
        if not self._insist and not is_worth(dense, sparse, images, pixels=weight.dim() == 4):
            return None
        unit = Unit("layer", operation, (0,), (1,), "")
        shapes = {0: tuple(x.shape), 1: output}
        holder = _Holder(weight, getattr(self._module, self._names[1]))
        return Subgraph({0: unit}, shapes, {1}, lambda path: holder, self._patterns, threads)

    def _operation(self, x: Tensor) -> tuple[op.Operation | None, tuple[int, ...]]:
        weight = Weight(torch.empty_like(self.weight, device="meta"), None)
        if len(weight.shape) == 2:
            fits = x.dim() >= 2 and x.dim() != 4 and x.shape[-1] == weight.shape[1]
            return (op.Linear(weight) if fits else None), (*x.shape[:-1], weight.shape[0])
        module: Any = self._module
        plain = module.groups == 1 and module.padding_mode == "zeros" and tuple(module.dilation) == (1, 1)
        if not plain or isinstance(module.padding, str) or x.dim() != 4 or x.shape[1] != weight.shape[1]:
            return None, ()
        operation = op.Conv(weight, tuple(module.stride), tuple(module.padding))
        sides = [
            (x.shape[i + 2] + 2 * operation.padding[i] - weight.shape[i + 2]) // operation.stride[i] + 1 for i in (0, 1)
        ]
        return (operation if min(sides) > 0 else None), (x.shape[0], weight.shape[0], *sides)


class _Holder(nn.Module):
    """A weight and a bias under the names that a subgraph looks for."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None):
        super().__init__()
        self.weight, self.bias = weight, bias


class SelfAttention:
    """The projections of ``nn.MultiheadAttention`` where query, key and value are one; attention itself is torch's."""

    def __init__(
        self,
        module: nn.MultiheadAttention,
        patterns: Patterns,
        insist: bool,
        allowed: Callable[[Subgraph | None], Subgraph | None],
    ):
        self._module, self._allowed = module, allowed
        self.project = SingleLayer(module, patterns, insist, "in_proj_weight", "in_proj_bias")
        self.out = SingleLayer(module.out_proj, patterns, insist)

    def fits(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> bool:
        module = self._module
        plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
        masked = key_padding_mask is not None or attn_mask is not None or is_causal
        return bool(plain and query is key and key is value and not need_weights and not masked and query.dim() == 3)

    def forward(self, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        module = self._module
        x = query.transpose(0, 1) if module.batch_first else query
        parts = self._apply(self.project, x, module.in_proj_weight, module.in_proj_bias)
        y = mix_heads(parts, module.num_heads, module.dropout if module.training else 0.0)
        y = self._apply(self.out, y, module.out_proj.weight, module.out_proj.bias)
        return (y.transpose(0, 1) if module.batch_first else y), None

    def _apply(self, layer: SingleLayer, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        subgraph = self._allowed(layer.subgraph(x))
        found = None if subgraph is None else subgraph.run([x])
        assert weight is not None
        return F.linear(x, weight, bias) if found is None else found[0]
