"""One sparse parameter: its mask M, the part of Z in force, and the few operations both need.

All positions are row-major indices into the flattened parameter, whatever its memory layout. Nothing here
decides *when* something happens (see sparsifier.py) or *which* weights (see topology.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from cigl.sparsify import random_mask
from cigl.sparsify.random_mask import Positions
from cigl.sparsify.select import Selected
from cigl.sparsify.topology import Change, Scores

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLE = 512


def elements(tensor: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """A flat view of the tensor's memory, and where in it the row-major ``positions`` lie.

    ``take`` and ``put_`` would do this too, at half the speed, and ``put_`` not deterministically.
    """
    if tensor.is_contiguous():
        return tensor.view(-1), positions
    place, rest = torch.zeros_like(positions), positions
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        place, rest = place + rest % size * stride, rest // size
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()), place


def read(tensor: Tensor, positions: Tensor) -> Tensor:
    flat, place = elements(tensor, positions)
    return flat.index_select(0, place)


def write(tensor: Tensor, positions: Tensor, values: Tensor) -> None:
    flat, place = elements(tensor, positions)
    if values.dtype != flat.dtype:
        values = values.to(flat.dtype)
    flat.scatter_(0, place, values)


def put(tensor: Tensor, positions: Tensor, value: float) -> None:
    write(tensor, positions, torch.full(positions.shape, value, dtype=tensor.dtype, device=tensor.device))


def keep_only(tensor: Tensor, bits: Tensor) -> None:
    """Set everything to zero, in place, where ``bits`` (int8, -1 or 0) is 0.

    It selects by a bitwise "and" with all ones or all zeros, because 0 * inf is NaN; on the CPU this takes
    a third of the time of ``torch.where`` or ``masked_fill_``, and the int8 is widened on the way.
    """
    tensor.view(_INTEGER[tensor.element_size()]).bitwise_and_(bits)


@dataclass(eq=False)
class Layer:
    """A parameter with its mask. Scores of a method may use everything that is public here."""

    selected: Selected
    target: int  # how many weights the finished layer has
    seed: int
    bits: Tensor = field(init=False)  # M as int8: -1 (all bits set) where active, else 0
    explored: Tensor = field(init=False)  # where M was ever 1
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the method has declared
    gradient: Tensor | None = None  # dense, summed over the step's micro-batches, while it is needed
    is_dense: bool = False  # M is all ones: there is nothing to mask
    off: Tensor | None = None  # where Z is 0, while a Z is in force
    _saved: Tensor | None = None  # the weights there
    _zeros: Tensor | None = None  # as many
    _saved_state: dict[str, Tensor] = field(default_factory=dict)
    _masked: tuple[int, int] | None = None  # which p.grad was masked, and its version then

    def __post_init__(self) -> None:
        self.name = self.selected.name
        self.parameter = self.selected.parameter
        self.shape, self.size = self.parameter.shape, self.parameter.numel()

    @property
    def weight(self) -> Tensor:
        """W as the parameter holds it, without a graph."""
        return self.parameter.detach()

    @property
    def mask(self) -> Tensor:
        """M, a new bool tensor."""
        return self.bits != 0

    @property
    def random_mask(self) -> Tensor:
        """Z, a new bool tensor: False where a weight is switched off."""
        mask = torch.ones_like(self.bits, dtype=torch.bool)
        if self.off is not None:
            put(mask, self.off, 0)
        return mask

    def set_mask(self, mask: Tensor, explored: Tensor | None = None) -> None:
        """Take this M, in the parameter's memory layout and on its device."""
        self.bits = torch.empty_like(self.weight, dtype=torch.int8).copy_(mask).neg_()
        self.explored = self.mask if explored is None else torch.empty_like(self.mask).copy_(explored)
        self.is_dense = bool(mask.all())

    def active(self) -> Positions:
        return np.flatnonzero(self.bits.cpu().contiguous().numpy()).astype(np.uint32)

    def positions(self, array: Positions) -> Tensor:
        """Positions as torch takes them, on the parameter's device."""
        return torch.from_numpy(array.astype(np.int64)).to(self.bits.device)

    def uniform(self, stream: str, step: int) -> Tensor:
        """A number in [0, 1) for each weight, a pure function of seed, stream, step, name and position."""
        numbers = random_mask.uniform(self.size, self.seed, stream, step, self.name)
        return torch.from_numpy(numbers).view(self.shape)

    def follow(self) -> None:
        """Go where the parameter went (``model.to(device)`` after attaching)."""
        device = self.parameter.device
        if self.bits.device != device:
            self.bits, self.explored = self.bits.to(device), self.explored.to(device)
            self.memory = {name: value.to(device) for name, value in self.memory.items()}

    # Z

    def switch_off(self, off: Tensor, zeros: Tensor, optimizer: Optimizer) -> None:
        """Put Z in force: the weights at ``off`` and their optimizer state are set aside."""
        weight = self.weight
        self.off, self._saved, self._zeros = off, read(weight, off), zeros
        self._saved_state = {name: read(state, off) for name, state in self.states(optimizer)}
        write(weight, off, zeros)

    def suspend(self) -> None:
        """M*W for an eval forward, while Z stays in force."""
        if self.off is not None and self._saved is not None:
            write(self.weight, self.off, self._saved)

    def resume(self) -> None:
        if self.off is not None and self._zeros is not None:
            write(self.weight, self.off, self._zeros)

    def switch_on(self, optimizer: Optimizer) -> None:
        """End of the step: what Z had switched off is as it was, weights and optimizer state."""
        if self.off is None or self._saved is None or self._zeros is None:
            return
        write(self.weight, self.off, self._saved)
        state = optimizer.state.get(self.parameter, {})
        for name, saved in self._saved_state.items():
            write(state[name], self.off, saved)
        if not self._saved_state:  # the optimizer may just have made its state
            for _, tensor in self.states(optimizer):
                put(tensor, self.off, 0)

    def forget_off(self) -> None:
        self.off = self._saved = self._zeros = None
        self._saved_state = {}

    def true_weight(self) -> Tensor:
        """A copy of M*W, also while Z is in force."""
        weight = self.weight.clone()
        if self.off is not None and self._saved is not None:
            write(weight, self.off, self._saved)
        return weight

    # Gradients

    def keep_gradient(self, incoming: Tensor) -> None:
        """Add a micro-batch's dense gradient, before it is accumulated, to what is kept of this step.

        A p.grad that is gone or zero is a new start: the user has thrown the earlier part away.
        """
        so_far = self.parameter.grad
        if self.gradient is None or so_far is None or not so_far.any():
            self.gradient = incoming.detach().clone()
        else:
            self.gradient += incoming.detach()

    def mask_gradient(self) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        if not self.is_dense:
            keep_only(gradient, self.bits)
        if self.off is not None and self._zeros is not None:
            write(gradient, self.off, self._zeros)
        self._masked = (id(gradient), gradient._version)

    def gradient_is_touched(self) -> bool:
        """Whether p.grad is another one, or was written to, since it was masked (noise, manual gradients)."""
        gradient = self.parameter.grad
        return gradient is not None and self._masked != (id(gradient), gradient._version)

    def spoil_gradient(self) -> None:
        """Make an overflow that the mask hides visible to a GradScaler, which then skips the step."""
        gradient = self.parameter.grad
        assert gradient is not None
        put(gradient, self.bits.flatten().argmin().view(1), float("nan"))

    def rescale_gradient(self, active: Positions) -> None:
        """Undo a GradScaler's factor (and follow clipping) in the kept gradient: only p.grad had it.

        The factor is the same for the whole tensor, so a sample of the active weights tells it.
        """
        if self.gradient is None or self.parameter.grad is None:
            return
        sample = self.positions(active[:: max(1, active.size // _SAMPLE)])
        applied = read(self.parameter.grad, sample).abs()
        kept = read(self.gradient, sample).abs()
        before = float(torch.where(applied != 0, kept, 0).sum())
        factor = float(applied.sum()) / before if before else 1.0
        if factor != 1.0:
            self.gradient *= factor

    # M

    def apply(self, change: Change, optimizer: Optimizer, start_variance: str) -> None:
        """Move the mask; dropped weights, their gradient and optimizer state become zero."""
        dropped, grown = self.positions(change.dropped), self.positions(change.grown)
        states = dict(self.states(optimizer))
        put(self.bits, dropped, 0)
        put(self.bits, grown, -1)
        put(self.explored, grown, 1)
        self.is_dense = change.active.size == self.size
        gradient = self.parameter.grad
        for tensor in [self.weight, *states.values(), *([] if gradient is None else [gradient])]:
            put(tensor, dropped, 0)
        if start_variance == "mean" and len(grown):
            for name in {"exp_avg_sq", "square_avg"} & states.keys():
                total = states[name].sum()  # zero outside M, and at the grown weights so far
                put(states[name], grown, float(total / max(1, change.active.size - len(grown))))

    def clear_inactive(self, optimizer: Optimizer) -> None:
        """Zero weights, gradient and optimizer state outside M: at the start, and where an optimizer mixes."""
        gradient = [] if self.parameter.grad is None else [self.parameter.grad]
        for tensor in [self.weight, *gradient, *dict(self.states(optimizer)).values()]:
            keep_only(tensor, self.bits)

    def owned(self, scores: Tensor) -> Tensor:
        """Scores that may be written to: a copy, if a method has returned something of the layer itself."""
        mine = [self.weight, self.gradient, *self.memory.values()]
        same = any(tensor is not None and tensor.data_ptr() == scores.data_ptr() for tensor in mine)
        return scores.clone() if same else scores

    def states(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        """The optimizer's state that has one number per weight."""
        state = optimizer.state.get(self.parameter, {})
        return [
            (name, value) for name, value in state.items() if isinstance(value, Tensor) and value.shape == self.shape
        ]


def is_finite(tensor: Tensor) -> bool:
    return all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor))


def as_scores(scores: Tensor) -> Scores:
    """Row-major float32 numbers on the CPU, as topology.py takes them."""
    flat: Scores = scores.detach().to("cpu", torch.float32).reshape(-1).numpy()
    return flat
