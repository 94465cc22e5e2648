"""One sparse parameter: its mask M, what Z has switched off, and the few operations both need.

All positions are row-major indices into the flattened parameter, whatever its memory layout. Of a sharded parameter
all tensors and positions here are those of the rows that this process holds, and ``shape``, ``size``, ``units``,
``target`` and ``count`` are the whole parameter's. Nothing here decides *when* something happens (see step.py) or
*which* weights (see topology.py), and nothing in an ordinary step is read by the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from cigl.sparsify.optimizers.state import OptimizerState, StateTensor
from cigl.sparsify.parameters.select import Selected
from cigl.sparsify.tensors import random_numbers
from cigl.sparsify.tensors.flat_indexing import finite, keep_only, read, write
from cigl.sparsify.tensors.shards import all_reduce, like, local, local_gradient, part_of

_SAMPLE = 512  # weights that tell a GradScaler's factor


class Suspended(Protocol):
    """What a Z has switched off in some layers (z_in_force.py), as a layer sees it."""

    def kept(self, layer: Layer) -> Tensor:
        """M*Z: int8, -1 or 0."""

    def true_weight(self, layer: Layer) -> Tensor:
        """A copy of M*W."""


@dataclass(frozen=True, eq=False)
class MaskedGradient:
    """The p.grad that was masked, recognised also where another tensor has taken its place in memory."""

    tensor: TensorWeakRef
    version: int

    @classmethod
    def of(cls, gradient: Tensor) -> MaskedGradient:
        return cls(TensorWeakRef(gradient), gradient._version)

    def is_still(self, gradient: Tensor) -> bool:
        return self.tensor() is gradient and self.version == gradient._version


@dataclass(eq=False)
class Layer:
    """A parameter with its mask. Scores of a method may use everything that is public here."""

    selected: Selected
    target: int  # how many weights the finished layer has, over all processes
    layers: int  # of the network that are sparse, this one among them
    seed: int
    optimizer: OptimizerState
    bits: Tensor = field(init=False)  # M as int8: -1 (all bits set) where active, else 0
    explored: Tensor = field(init=False)  # where M was ever 1
    explored_count: Tensor = field(init=False)  # a number, over all processes
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the method has declared
    gradient: Tensor | None = None  # dense, summed over the step's micro-batches, while it is needed
    is_dense: bool = False  # M is all ones: there is nothing to mask
    count: int = 0  # active weights, over all processes (see rounds.py)
    suspended: Suspended | None = None  # while a Z is in force in the parameter itself
    held_z: Callable[[], Tensor] | None = None  # M*Z, while it is in force in sparse kernels alone
    _masked: MaskedGradient | None = None

    def __post_init__(self) -> None:
        self.bind(self.selected)

    def bind(self, selected: Selected) -> None:
        """To this parameter: the one that was selected, or what it became when the model was sharded."""
        self.selected, self.name, self.parameter = selected, selected.name, selected.parameter
        self.shape, self.size = self.parameter.shape, self.parameter.numel()
        self.units = selected.units
        self.part = part_of(self.parameter)

    @property
    def weight(self) -> Tensor:
        """W as the parameter holds it, without a graph."""
        return local(self.parameter)

    @property
    def version(self) -> int:
        """Counts the writes to W."""
        return self.parameter._version + (0 if self.part.group is None else self.weight._version)

    @property
    def mask(self) -> Tensor:
        """M, a new bool tensor."""
        return self.bits != 0

    @property
    def kept(self) -> Tensor:
        """M*Z while a Z is in force, else M: int8, -1 or 0."""
        if self.suspended is not None:
            return self.suspended.kept(self)
        return self.bits if self.held_z is None else self.held_z()

    @property
    def random_mask(self) -> Tensor:
        """Z, a new bool tensor: False where an active weight is switched off."""
        return (self.kept != 0) | ~self.mask

    def set_mask(self, mask: Tensor, explored: Tensor | None = None) -> None:
        """Take this M, in the parameter's memory layout and on its device."""
        self.bits = torch.empty_like(self.weight, dtype=torch.int8).copy_(mask).neg_()
        self.explored = self.mask if explored is None else torch.empty_like(self.mask).copy_(explored)

    def active(self, count: int | None = None) -> Tensor:
        """The active positions in ascending order; of a ``count`` that is known, the host need not wait."""
        flat = self.bits.reshape(-1)
        if count is None or flat.is_cpu:
            return flat.nonzero().view(-1)
        return torch.nonzero_static(flat, size=count).view(-1)

    def fans(self) -> tuple[Tensor, Tensor]:
        """Active fan-in of each output unit and fan-out of each input unit, over all processes, which must all ask."""
        positions = self.part.to_global(self.active().cpu())
        fan_in, fan_out = self.selected.layout.fans_at(positions, tuple(self.shape))
        return all_reduce(self.part, fan_in).cpu(), all_reduce(self.part, fan_out).cpu()

    def uniform(self, stream: str, step: int) -> Tensor:
        """A number in [0, 1) for each weight, a pure function of seed, stream, step, name and position."""
        weight = self.weight
        place = self.part.start, weight.device
        return random_numbers.uniform(weight.numel(), self.seed, stream, step, self.name, *place).view(weight.shape)

    def follow_parameter(self) -> bool:
        """Move to the parameter's device (``model.to(device)`` after attaching), if it is another one."""
        device = self.parameter.device
        if self.bits.device == device:
            return False
        self.bits, self.explored = self.bits.to(device), self.explored.to(device)
        self.explored_count = self.explored_count.to(device)
        self.memory = {name: value.to(device) for name, value in self.memory.items()}
        return True

    def states(self) -> list[StateTensor]:
        """The optimizer's state that has one number per weight."""
        return self.optimizer.of(self.parameter)

    def end_step(self) -> None:
        """Nothing of a step stays."""
        self.suspended = self.held_z = self.gradient = None

    def true_weight(self) -> Tensor:
        """A copy of M*W, also while Z is in force."""
        return self.weight.clone() if self.suspended is None else self.suspended.true_weight(self)

    def nonzeros(self) -> Tensor:
        """Active weights that are not zero, in the rows held here: a grown one is zero until it has moved."""
        return ((self.true_weight() != 0) & self.mask).sum()

    # Gradients

    def keep_gradient(self, incoming: Tensor) -> None:
        """Add a micro-batch's dense gradient, before it is accumulated, to what is kept of this step.

        A p.grad that is gone or zero is a new start: the user has thrown the earlier part away.
        """
        self.forget_discarded_gradient()
        if self.gradient is None:
            self.gradient = incoming.detach().clone()
        else:
            self.gradient += incoming.detach()

    def forget_discarded_gradient(self) -> None:
        """What is kept counts no more where p.grad is gone or zero; which of both the host need not know."""
        so_far = local_gradient(self.parameter)
        if so_far is None:
            self.gradient = None
        elif self.gradient is not None:
            self.gradient.masked_fill_(~so_far.any(), 0)

    def keep_reduced_gradient(self) -> None:
        """The same for a sharded parameter, whose gradient is seen only when FSDP has reduced and accumulated it.

        Before it is masked, p.grad holds the micro-batch's gradient, and where weights are in force all that was
        accumulated besides.
        """
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        if self.gradient is None or self._masked is None or self._masked.tensor() is not gradient:
            self.gradient = gradient.clone()
        else:
            self.gradient = torch.where(self.kept != 0, gradient, self.gradient + gradient)

    def mask_gradient(self) -> None:
        """By M*Z."""
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        kept = self.kept
        if not (self.is_dense and kept is self.bits):
            keep_only(gradient, kept)
        self.gradient_is_masked()

    def gradient_is_masked(self) -> None:
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        self._masked = MaskedGradient.of(gradient)

    def gradient_was_changed(self) -> bool:
        """Whether p.grad is another one, or was written to, since it was masked (noise, manual gradients)."""
        gradient = local_gradient(self.parameter)
        return gradient is not None and not (self._masked and self._masked.is_still(gradient))

    def show_overflow(self) -> Tensor:
        """Make an overflow that the mask hides visible to a GradScaler, which then skips the step.

        Returns whether the kept gradient is finite.
        """
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        assert self.gradient is not None
        is_finite = finite(self.gradient)
        if gradient.numel():
            hidden = self.bits.reshape(-1).argmin().view(1)
            write(gradient, hidden, torch.where(is_finite, read(gradient, hidden), float("nan")))
        return is_finite

    def gradient_sums(self) -> Tensor:
        """Sums over a sample of the active weights: of the kept dense gradient, and of p.grad as it was applied."""
        gradient = local_gradient(self.parameter)
        active = self.active(self.count if self.part.group is None else None)
        if self.gradient is None or gradient is None:
            return torch.zeros(2, dtype=torch.float64, device=self.bits.device)
        sample = active[:: max(1, len(active) // _SAMPLE)]
        applied, kept = read(gradient, sample).abs(), read(self.gradient, sample).abs()
        return torch.stack([torch.where(applied != 0, kept, 0).sum(), applied.sum()]).to(torch.float64)

    def rescale_gradient(self, sums: Tensor) -> None:
        """Undo a GradScaler's factor (and follow clipping) in the kept gradient: only p.grad had it.

        The factor is the same for the whole tensor, so a sample gives it.
        """
        if self.gradient is not None:
            kept, applied = sums
            self.gradient *= torch.where((kept != 0) & (applied != kept), applied / kept, 1.0)

    # M

    def change_mask(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Take this M; dropped weights and their gradient become zero, their optimizer state that of a new weight.

        Returns where M has grown, and how many weights are active for the first time.
        """
        new = torch.empty_like(self.bits, dtype=torch.bool).copy_(new.view(self.bits.shape))
        old = self.mask
        dropped, grown = old & ~new, new & ~old
        first = (grown & ~self.explored).sum()
        self.bits.copy_(new).neg_()
        self.explored |= grown
        gradient = local_gradient(self.parameter)
        for tensor in [self.weight, *([] if gradient is None else [gradient])]:
            tensor.masked_fill_(dropped, 0)
        for state in self.states():
            state.tensor.masked_fill_(dropped, state.of_zero)
            if state.of_zero:
                state.tensor.masked_fill_(grown, state.of_zero)
        return grown, first

    def clear_inactive(self) -> None:
        """Zero weights and gradient and reset state outside M: at the start, and where an optimizer mixes weights."""
        gradient = local_gradient(self.parameter)
        for tensor in [self.weight, *([] if gradient is None else [gradient])]:
            keep_only(tensor, self.bits)
        for state in self.states():
            state.clear(self.bits)

    def whole(self, tensor: Tensor) -> Tensor:
        """A local tensor as what the parameter is: a DTensor, where it is sharded."""
        return like(self.parameter, tensor)

    def writable(self, scores: Tensor) -> Tensor:
        """Scores that may be written to: a copy, if a method has returned something of the layer itself."""
        mine = [self.weight, self.gradient, *self.memory.values()]
        same = any(tensor is not None and tensor.data_ptr() == scores.data_ptr() for tensor in mine)
        return scores.clone() if same else scores
