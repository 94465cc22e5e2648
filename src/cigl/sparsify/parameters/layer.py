"""One sparse parameter: its mask M, what Z has set aside, and the few operations both need.

All positions are row-major indices into the flattened parameter, whatever its memory layout. Of a sharded parameter
all tensors and positions here are those of the rows that this process holds, and ``shape``, ``size``, ``units``,
``target`` and ``count`` are the whole parameter's. Nothing here decides *when* something happens (see step.py) or
*which* weights (see topology.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils.weak import TensorWeakRef

from cigl.sparsify.optimizers.state import OptimizerState, StateTensor
from cigl.sparsify.parameters.select import Selected
from cigl.sparsify.tensors import random_numbers
from cigl.sparsify.tensors.flat_indexing import fill, keep_only, read, write
from cigl.sparsify.tensors.random_numbers import Positions
from cigl.sparsify.tensors.shards import all_reduce, like, local, local_gradient, part_of
from cigl.sparsify.tensors.topology import Change

_SAMPLE = 512  # weights that tell a GradScaler's factor


@dataclass(frozen=True, eq=False)
class SuspendedWeights:
    """What Z has switched off in a step, and how it was before."""

    positions: Tensor
    weights: Tensor
    zeros: Tensor  # as many, to be written in their place
    state: dict[str, Tensor]  # the optimizer's, one number per weight

    def mask(self, tensor: Tensor) -> None:
        write(tensor, self.positions, self.zeros)

    def restore(self, weight: Tensor) -> None:
        write(weight, self.positions, self.weights)


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
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the method has declared
    gradient: Tensor | None = None  # dense, summed over the step's micro-batches, while it is needed
    is_dense: bool = False  # M is all ones: there is nothing to mask
    count: int = 0  # active weights, over all processes (see rounds.py)
    explored_count: int = 0
    suspended: SuspendedWeights | None = None  # while a Z is in force in the parameter itself
    held_z: Callable[[], Tensor] | None = None  # while one is in force in sparse kernels alone: its positions
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
    def random_mask(self) -> Tensor:
        """Z, a new bool tensor: False where a weight is switched off."""
        mask = torch.ones_like(self.bits, dtype=torch.bool)
        self.zero_switched_off(mask)
        return mask

    def set_mask(self, mask: Tensor, explored: Tensor | None = None) -> None:
        """Take this M, in the parameter's memory layout and on its device."""
        self.bits = torch.empty_like(self.weight, dtype=torch.int8).copy_(mask).neg_()
        self.explored = self.mask if explored is None else torch.empty_like(self.mask).copy_(explored)
        self.is_dense = bool(mask.all())

    def active(self) -> Positions:
        return np.flatnonzero(self.bits.cpu().contiguous().numpy()).astype(np.uint32)

    def fans(self) -> tuple[Tensor, Tensor]:
        """Active fan-in of each output unit and fan-out of each input unit, over all processes, which must all ask."""
        positions = torch.from_numpy(self.part.to_global(self.active()).astype(np.int64))
        fan_in, fan_out = self.selected.layout.fans_at(positions, tuple(self.shape))
        return all_reduce(self.part, fan_in), all_reduce(self.part, fan_out)

    def positions(self, array: Positions) -> Tensor:
        """Positions as torch takes them, on the parameter's device."""
        return torch.from_numpy(array.astype(np.int64)).to(self.bits.device)

    def uniform(self, stream: str, step: int) -> Tensor:
        """A number in [0, 1) for each weight, a pure function of seed, stream, step, name and position."""
        weight = self.weight
        numbers = random_numbers.uniform(weight.numel(), self.seed, stream, step, self.name, self.part.start)
        return torch.from_numpy(numbers).view(weight.shape)

    def follow_parameter(self) -> None:
        """Move to the parameter's device (``model.to(device)`` after attaching)."""
        device = self.parameter.device
        if self.bits.device != device:
            self.bits, self.explored = self.bits.to(device), self.explored.to(device)
            self.memory = {name: value.to(device) for name, value in self.memory.items()}

    # Z

    def states(self) -> list[StateTensor]:
        """The optimizer's state that has one number per weight."""
        return self.optimizer.of(self.parameter)

    @property
    def switched_off(self) -> Tensor | None:
        """The positions that Z has switched off in the parameter itself, while it is in force there."""
        return None if self.suspended is None else self.suspended.positions

    def apply_z(self, positions: Tensor, zeros: Tensor) -> None:
        """Put Z in force: these weights and their optimizer state are set aside."""
        state = {state.name: read(state.tensor, positions) for state in self.states()}
        for name, tensor in self.optimizer.open(self.parameter).items():  # may turn out to be per weight in this step
            state[name] = read(tensor, positions)
        self.suspended = SuspendedWeights(positions, read(self.weight, positions), zeros, state)
        self.suspended.mask(self.weight)

    def materialize_z(self) -> None:
        """A Z that was in force in sparse kernels alone: also in the parameter, for whatever reads it next.

        What the kernels have computed stands, so that a backward that is still due may come.
        """
        if self.held_z is not None:
            positions, self.held_z = self.held_z(), None
            zeros = torch.zeros(positions.shape, dtype=self.weight.dtype)
            with _unsafe_preserve_version_counter(self.parameter):
                self.apply_z(positions, zeros)

    def zero_switched_off(self, tensor: Tensor) -> None:
        """Zero at the weights that Z has switched off."""
        if self.suspended is not None:
            fill(tensor, self.suspended.positions, 0)
        elif self.held_z is not None:
            fill(tensor, self.held_z(), 0)

    def suspend(self) -> None:
        """M*W for an eval forward, while Z stays in force."""
        if self.suspended is not None:
            self.suspended.restore(self.weight)

    def resume(self) -> None:
        if self.suspended is not None:
            self.suspended.mask(self.weight)

    def restore(self) -> None:
        """End of the step: what Z had switched off is as it was, weights and optimizer state."""
        if self.suspended is None:
            return
        self.suspended.restore(self.weight)
        for state in self.states():
            if state.name in self.suspended.state:
                write(state.tensor, self.suspended.positions, self.suspended.state[state.name])
            else:  # the optimizer has just made it, of weights that were switched off
                state.start(self.suspended.positions, self.suspended.weights)

    def end_step(self) -> None:
        """Nothing of a step stays."""
        self.suspended = self.held_z = self.gradient = None

    def true_weight(self) -> Tensor:
        """A copy of M*W, also while Z is in force."""
        weight = self.weight.clone()
        if self.suspended is not None:
            self.suspended.restore(weight)
        return weight

    def nonzeros(self) -> int:
        """Active weights that are not zero, in the rows held here: a grown one is zero until it has moved."""
        return int(((self.true_weight() != 0) & self.mask).sum())

    # Gradients

    def keep_gradient(self, incoming: Tensor) -> None:
        """Add a micro-batch's dense gradient, before it is accumulated, to what is kept of this step.

        A p.grad that is gone or zero is a new start: the user has thrown the earlier part away.
        """
        if self.gradient is None or self.gradient_was_discarded():
            self.gradient = incoming.detach().clone()
        else:
            self.gradient += incoming.detach()

    def gradient_was_discarded(self) -> bool:
        so_far = local_gradient(self.parameter)
        return so_far is None or not so_far.any()

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
            self.gradient = torch.where(self.mask & self.random_mask, gradient, self.gradient + gradient)

    def mask_gradient(self, from_kernels: bool = False) -> None:
        """By M and Z; where sparse kernels made the gradient, by a Z that they did not know."""
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        if not self.is_dense and not from_kernels:
            keep_only(gradient, self.bits)
        if self.suspended is not None:
            self.suspended.mask(gradient)
        elif not from_kernels:  # else the kernels have done it
            self.zero_switched_off(gradient)
        self._masked = MaskedGradient.of(gradient)

    def gradient_was_changed(self) -> bool:
        """Whether p.grad is another one, or was written to, since it was masked (noise, manual gradients)."""
        gradient = local_gradient(self.parameter)
        return gradient is not None and not (self._masked and self._masked.is_still(gradient))

    def show_overflow(self) -> None:
        """Make an overflow that the mask hides visible to a GradScaler, which then skips the step."""
        gradient = local_gradient(self.parameter)
        assert gradient is not None
        fill(gradient, self.bits.flatten().argmin().view(1), float("nan"))

    def gradient_sums(self, active: Positions) -> tuple[float, float]:
        """Sums over a sample of the active weights: of the kept dense gradient, and of p.grad as it was applied."""
        gradient = local_gradient(self.parameter)
        if self.gradient is None or gradient is None:
            return 0.0, 0.0
        sample = self.positions(active[:: max(1, active.size // _SAMPLE)])
        applied, kept = read(gradient, sample).abs(), read(self.gradient, sample).abs()
        return float(torch.where(applied != 0, kept, 0).sum()), float(applied.sum())

    def rescale_gradient(self, kept: float, applied: float) -> None:
        """Undo a GradScaler's factor (and follow clipping) in the kept gradient: only p.grad had it.

        The factor is the same for the whole tensor, so a sample gives it.
        """
        if self.gradient is not None and kept and applied != kept:
            self.gradient *= applied / kept

    # M

    def change_mask(self, change: Change) -> int:
        """Drop and grow; dropped weights and their gradient become zero, their optimizer state that of a new weight.

        Returns how many weights are active for the first time.
        """
        dropped, grown = self.positions(change.dropped), self.positions(change.grown)
        new = int((read(self.explored, grown) == 0).sum())
        fill(self.bits, dropped, 0)
        fill(self.bits, grown, -1)
        fill(self.explored, grown, 1)
        self.is_dense = change.active.size == self.bits.numel()
        gradient = local_gradient(self.parameter)
        for tensor in [self.weight, *([] if gradient is None else [gradient])]:
            fill(tensor, dropped, 0)
        for state in self.states():
            fill(state.tensor, dropped, state.of_zero)
            if state.of_zero:
                fill(state.tensor, grown, state.of_zero)
        return new

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
