"""One sparse parameter: its mask M, the part of Z in force, and the few operations both need.

All positions are row-major indices into the flattened parameter, whatever its memory layout or device.
Nothing here decides *when* something happens (see sparsifier.py) or *which* weights (see topology.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import Optimizer

from cigl.sparsify import random_mask
from cigl.sparsify.random_mask import Positions
from cigl.sparsify.select import Selected
from cigl.sparsify.topology import Change, Scores

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def elements(tensor: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """A flat view of the tensor's memory and where in it the row-major ``positions`` lie."""
    if tensor.is_contiguous():
        return tensor.view(-1), positions
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    place, rest = torch.zeros_like(positions), positions
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        place = place + rest % size * stride
        rest = rest // size
    return flat, place


def read(tensor: Tensor, positions: Tensor) -> Tensor:
    flat, place = elements(tensor, positions)
    return flat.index_select(0, place)


def write(tensor: Tensor, positions: Tensor, values: Tensor | float) -> None:
    flat, place = elements(tensor, positions)
    if isinstance(values, Tensor):
        flat.index_copy_(0, place, values)
    else:
        flat.index_fill_(0, place, values)


def keep_only(tensor: Tensor, mask: Tensor, off: Tensor | None = None) -> None:
    """Set everything outside ``mask`` (and at the positions ``off``) to zero, in place.

    It selects by a bitwise "and" with all ones or all zeros, because 0 * inf is NaN; on the CPU this is
    three times as fast as ``torch.where`` or ``masked_fill_``.
    """
    bits = mask.view(torch.int8).neg()
    if off is not None:
        write(bits, off, 0)
    integer = _INTEGER[tensor.element_size()]
    tensor.view(integer).bitwise_and_(bits.to(integer))


@dataclass(eq=False)
class Layer:
    """A parameter with its mask. ``gradient`` and ``memory`` are what a method's scores may use besides."""

    selected: Selected
    target: int  # how many weights the finished layer has
    seed: int
    mask: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    explored: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    memory: dict[str, Tensor] = field(default_factory=dict)
    gradient: Tensor | None = None  # dense, summed over the step's micro-batches
    is_dense: bool = False  # M is all ones: there is nothing to mask
    off: Tensor | None = None  # where Z is 0, while a Z is in force
    _saved: Tensor | None = None  # the weights there
    _saved_state: dict[str, Tensor] = field(default_factory=dict)
    _seen: tuple[int, int] | None = None  # which p.grad, at which version, `gradient` stands for

    @property
    def name(self) -> str:
        return self.selected.name

    @property
    def parameter(self) -> Tensor:
        return self.selected.parameter

    @property
    def weight(self) -> Tensor:
        """W, as the optimizer sees it, without a graph."""
        return self.selected.parameter.detach()

    @property
    def size(self) -> int:
        return self.mask.numel()

    @property
    def shape(self) -> torch.Size:
        return self.mask.shape

    def set_mask(self, mask: Tensor, explored: Tensor | None = None) -> None:
        """Take this M (a bool tensor of the parameter's shape), in the parameter's memory layout."""
        self.mask = torch.empty_like(self.weight, dtype=torch.bool).copy_(mask)
        self.explored = self.mask.clone() if explored is None else torch.empty_like(self.mask).copy_(explored)
        self.is_dense = bool(self.mask.all())

    def active(self) -> Positions:
        return np.flatnonzero(self.mask.cpu().numpy()).astype(np.uint32)

    def uniform(self, stream: str, step: int) -> Tensor:
        """A number in [0, 1) for each weight, a pure function of seed, stream, step, name and position."""
        numbers = random_mask.uniform(self.size, self.seed, stream, step, self.name)
        return torch.from_numpy(numbers).view(self.mask.shape)

    def follow(self) -> None:
        """Go where the parameter went (``model.to(device)`` after attaching)."""
        device = self.parameter.device
        if self.mask.device != device:
            self.mask, self.explored = self.mask.to(device), self.explored.to(device)
            self.memory = {name: value.to(device) for name, value in self.memory.items()}
            self.gradient = None
            self.off = None if self.off is None else self.off.to(device)
            self._saved = None if self._saved is None else self._saved.to(device)

    # Z

    def switch_off(self, off: Tensor, optimizer: Optimizer) -> None:
        """Put Z in force: the weights at ``off`` and their optimizer state are set aside."""
        self.off = off
        self._saved = read(self.weight, off)
        self._saved_state = {name: read(s, off) for name, s in state_tensors(optimizer, self).items()}
        write(self.weight, off, 0)

    def suspend(self) -> None:
        """M*W for an eval forward, while Z stays in force."""
        if self.off is not None and self._saved is not None:
            write(self.weight, self.off, self._saved)

    def resume(self) -> None:
        if self.off is not None:
            write(self.weight, self.off, 0)

    def switch_on(self, optimizer: Optimizer) -> None:
        """End of the step: what Z had switched off is as it was, weights and optimizer state."""
        if self.off is None or self._saved is None:
            return
        write(self.weight, self.off, self._saved)
        for name, state in state_tensors(optimizer, self).items():
            write(state, self.off, self._saved_state.get(name, 0.0))
        self.forget_off()

    def forget_off(self) -> None:
        self.off = self._saved = None
        self._saved_state = {}

    def true_weight(self) -> Tensor:
        """A copy of M*W, also while Z is in force."""
        weight = self.weight.clone()
        if self.off is not None and self._saved is not None:
            write(weight, self.off, self._saved)
        return weight

    # Gradients

    def keep_gradient(self) -> bool:
        """Put the dense gradient aside before it is masked; False if it is not finite.

        A second micro-batch adds to a p.grad that was masked after the first: inside the mask the sum is
        complete, outside it is only the new part. Any other history (zeroed, replaced) is a new start.
        """
        gradient = self.parameter.grad
        assert gradient is not None
        if self.gradient is not None and self._seen == (id(gradient), gradient._version - 1):
            keep_only(self.gradient, ~self.effective_mask())
            self.gradient.add_(gradient)
        else:
            self.gradient = gradient.clone()
        return is_finite(self.gradient)

    def mask_gradient(self) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        if self.off is not None or not self.is_dense:
            keep_only(gradient, self.mask, self.off)
        self._seen = (id(gradient), gradient._version)

    def rescale_gradient(self, active: Tensor) -> None:
        """Undo a GradScaler's factor (and follow clipping) in the kept gradient, which only p.grad had."""
        if self.gradient is None or self.parameter.grad is None:
            return
        applied = read(self.parameter.grad, active).abs()
        kept = read(self.gradient, active).abs()
        before = kept[applied != 0].sum()
        if before > 0:
            self.gradient *= applied.sum() / before

    def effective_mask(self) -> Tensor:
        """M*Z."""
        if self.off is None:
            return self.mask
        mask = self.mask.clone()
        write(mask, self.off, 0)
        return mask

    def spoil_gradient(self) -> None:
        """Make an overflow that the mask hides visible to a GradScaler, which then skips the step."""
        gradient = self.parameter.grad
        assert gradient is not None
        write(gradient, self.mask.flatten().int().argmax().view(1), float("nan"))

    # M

    def apply(self, change: Change, optimizer: Optimizer, start_variance: str) -> None:
        """Move the mask; dropped weights, their gradient and optimizer state become zero."""
        device = self.mask.device
        dropped = torch.from_numpy(change.dropped).to(device)
        grown = torch.from_numpy(change.grown).to(device)
        states = state_tensors(optimizer, self)
        write(self.mask, dropped, 0)
        write(self.mask, grown, 1)
        write(self.explored, grown, 1)
        self.is_dense = change.active.size == self.size
        gradient = self.parameter.grad
        for tensor in [self.weight, *states.values(), *([] if gradient is None else [gradient])]:
            write(tensor, dropped, 0)
        if start_variance == "mean":
            for name in {"exp_avg_sq", "square_avg"} & states.keys():
                old = read(states[name], torch.from_numpy(change.active.astype(np.int64)).to(device))
                write(states[name], grown, float(old.sum() / max(1, old.numel() - grown.numel())))

    def clear_inactive(self, optimizer: Optimizer) -> None:
        """Zero weights and optimizer state outside M: at the start, and for optimizers that mix elements."""
        for tensor in [self.weight, *state_tensors(optimizer, self).values()]:
            keep_only(tensor, self.mask)


def state_tensors(optimizer: Optimizer, layer: Layer) -> dict[str, Tensor]:
    """The optimizer's state that has one number per weight."""
    parameter = layer.parameter
    if parameter not in optimizer.state:
        return {}
    state = optimizer.state[parameter]
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()
    }


def is_finite(tensor: Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def as_scores(scores: Tensor) -> Scores:
    """Row-major float32 numbers on the CPU, as topology.py takes them."""
    flat: npt.NDArray[np.float32] = scores.detach().to("cpu", torch.float32).reshape(-1).numpy()
    return flat
