"""LSTM and GRU on sparse kernels: what the inputs contribute to the gates as one linear layer over all steps, then step
by step the non-zeros of the recurrent weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.runtime.program import library
from cigl.runtime.program.interface import RecurrentStruct

LAYERS = (nn.LSTM, nn.GRU)
# Share of zeros in the recurrent weights from which on the kernels are faster than torch: a single image has no
# neighbours to fill a vector with.
ZEROS, ZEROS_OF_ONE = 0.7, 0.85
_WORK = 2_000_000  # multiply-adds below which a second thread costs more than it brings


def takes(layer: nn.Module) -> bool:
    """Whether the kernels compute it, and there are enough zeros in it for that to pay."""
    return type(layer) in LAYERS and not layer.proj_size and _zeros(layer) >= ZEROS


def _zeros(layer: nn.Module) -> float:
    weights = [each for name, each in layer.named_parameters() if name.startswith("weight_hh")]
    return 1 - sum(int(each.count_nonzero()) for each in weights) / sum(each.numel() for each in weights)


class SparseRecurrent:
    """Stands in for the forward of an LSTM or GRU; what is no plain tensor goes to the layer itself."""

    def __init__(self, layer: nn.RNNBase, make: Callable[[nn.Module, str], Callable[[Tensor], Any]]):
        """``make`` gives a linear layer an engine; it is told the name of its weight."""
        self.layer, self._takes_one = layer, _zeros(layer) >= ZEROS_OF_ONE
        endings = [f"_l{number}{end}" for number in range(layer.num_layers) for end in ("", "_reverse")]
        self._parts = [
            (make(_inputs_of(layer, end), f"weight_ih{end}"), _Recurrence(layer, end))
            for end in endings
            if hasattr(layer, f"weight_hh{end}")
        ]

    def __call__(self, input: Any, hx: Any = None) -> Any:
        states = hx if isinstance(hx, tuple) else () if hx is None else (hx,)
        layer = self.layer
        if not self._takes(input, states):
            return type(layer).forward(layer, input, hx)
        is_batch, steps_first = input.dim() == 3, not layer.batch_first
        images = input.shape[int(steps_first)] if is_batch else 1
        x = input if is_batch else input.unsqueeze(int(steps_first))
        size = (len(self._parts), images, layer.hidden_size)
        kept = [each.reshape(size).contiguous().clone() for each in states]
        kept += [torch.zeros(size, dtype=torch.float32) for _ in range(_states(layer) - len(kept))]
        directions = 2 if layer.bidirectional else 1
        for number in range(layer.num_layers):
            out = torch.empty(*x.shape[:2], directions * layer.hidden_size, dtype=torch.float32)
            for direction in range(directions):
                place = number * directions + direction
                project, recurrence = self._parts[place]
                gates = project(x.flatten(0, 1)).view(*x.shape[:2], -1)
                part = out[..., direction * layer.hidden_size :]
                recurrence.run(gates, [each[place] for each in kept], part, steps_first, direction == 1)
            x = out
        if not is_batch:
            x, kept = x.squeeze(int(steps_first)), [each.squeeze(1) for each in kept]
        return x, tuple(kept) if len(kept) == 2 else kept[0]

    def _takes(self, input: Any, states: tuple[Any, ...]) -> bool:
        """Whether the kernels can: they read memory by these sizes. The rest is for torch to compute, or to refuse."""
        layer = self.layer
        if not all(map(_is_plain, (input, *states))) or input.dim() not in (2, 3) or input.numel() == 0:
            return False
        batch = [input.shape[int(not layer.batch_first)]] if input.dim() == 3 else []
        state = (len(self._parts), *batch, layer.hidden_size)
        fits = not states or [each.shape for each in states] == [state] * _states(layer)
        return input.shape[-1] == layer.input_size and fits and (batch not in ([], [1]) or self._takes_one)


class _Recurrence:
    """The recurrent weight of one layer and direction as compressed rows."""

    def __init__(self, layer: nn.RNNBase, end: str):
        weight = getattr(layer, f"weight_hh{end}").detach().float().numpy()
        bias = getattr(layer, f"bias_hh{end}").detach().float().numpy().copy() if layer.bias else None
        row, column = np.nonzero(weight)
        self.rows = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(weight)))]).astype(np.int32)
        self.columns, self.values, self.bias = column.astype(np.int32), weight[row, column], bias
        self.gates, self.hidden = len(weight) // layer.hidden_size, layer.hidden_size

    def run(self, gates: Tensor, states: list[Tensor], out: Tensor, steps_first: bool, backwards: bool) -> None:
        """From the inputs' part of the gates [step][image] (or the other way round) the states after each step, and in
        ``states`` those after the last."""
        gates = gates.contiguous()
        (in_step, in_image), (out_step, out_image) = (
            each.stride()[:2] if steps_first else each.stride()[1::-1] for each in (gates, out)
        )
        steps, images = gates.shape[:2] if steps_first else gates.shape[1::-1]
        threads = torch.get_num_threads() if steps * images * len(self.values) >= _WORK else 1
        isa = library.isa()
        struct = RecurrentStruct(
            self.gates, steps, images, self.hidden, int(backwards),
            self.rows.ctypes.data, self.columns.ctypes.data, self.values.ctypes.data,
            None if self.bias is None else self.bias.ctypes.data,
            gates.data_ptr(), in_step, in_image,
            states[0].data_ptr(), states[-1].data_ptr(), out.data_ptr(), out_step, out_image,
            min(threads, -(-images // library.lanes(isa))),  # each has vectors of images of its own
        )  # fmt: skip
        library.get().cigl_recur(isa.encode(), ctypes.byref(struct))


def _inputs_of(layer: nn.RNNBase, end: str) -> nn.Linear:
    """The linear layer by which inputs reach the gates."""
    weight = getattr(layer, f"weight_ih{end}").detach()
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias:
        linear.bias = nn.Parameter(getattr(layer, f"bias_ih{end}").detach(), requires_grad=False)
    return linear.eval()


def _states(layer: nn.RNNBase) -> int:
    return 2 if isinstance(layer, nn.LSTM) else 1


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided
