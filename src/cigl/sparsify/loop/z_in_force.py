"""The Z of a step while it is in force: in the parameters, or in sparse kernels that leave out what it switches off."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from cigl.sparsify.loop.context import Context
from cigl.sparsify.parameters.active import ActiveWeights
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import masked, merged

_ALL = -1  # layers, in place of the number of one


class SuspendedWeights:
    """What Z switches off in some layers, and how it was before: the active weights and their optimizer state."""

    def __init__(self, active: ActiveWeights, on: Tensor):
        self._kept = active.kept(on)
        self._active, self._on = active.narrowed(on)
        self._number = {layer: number for number, layer in enumerate(active.layers)}
        self._states: dict[str, dict[int, Tensor]] = {}
        self._weights = self._active.write(self._parameters(), self._masked)
        for layer in active.layers:
            layer.suspended, layer.held_z = self, None

    def _parameters(self) -> list[Tensor]:
        return [layer.weight for layer in self._active.layers]

    def _masked(self, now: Tensor) -> Tensor:
        return masked(now, self._on)

    def kept(self, layer: Layer) -> Tensor:
        return self._kept[self._number[layer]]

    def true_weight(self, layer: Layer) -> Tensor:
        weight = layer.weight.clone()
        self._restore(self._number[layer], [weight], self._weights)
        return weight

    def mask(self) -> None:
        """The parameters hold M*Z*W."""
        self._active.write(self._parameters(), self._masked)

    def restore(self) -> None:
        """The parameters hold M*W."""
        self._restore(_ALL, self._parameters(), self._weights)

    def save_states(self) -> None:
        """The optimizer's, before it steps; also those that may turn out to be per weight in this step."""
        known = [{state.name: state.tensor for state in layer.states()} for layer in self._active.layers]
        maybe = [layer.optimizer.open(layer.parameter) for layer in self._active.layers]
        tensors = [a | b for a, b in zip(known, maybe, strict=True)]
        for name in dict.fromkeys(name for each in tensors for name in each):
            held = {number: each[name] for number, each in enumerate(tensors) if name in each}
            self._states[name] = {
                number: self._at(number)[0].read([held[k] for k in members]) for number, members in self._groups(held)
            }

    def restore_states(self) -> None:
        """What the optimizer has just made of weights that were switched off is as for new ones with their values."""
        states = [{state.name: state for state in layer.states()} for layer in self._active.layers]
        for name in dict.fromkeys(name for each in states for name in each):
            held, saved = {n: each[name] for n, each in enumerate(states) if name in each}, self._states.get(name, {})
            is_whole = not saved or _ALL in saved
            for number, members in self._groups({n: state.tensor for n, state in held.items()}, is_whole):
                old = saved.get(number, saved[_ALL][self._at(number)[1]] if _ALL in saved else None)
                first = held[members[0]]
                if old is None:
                    old = first.started(self._weights[self._at(number)[1]])
                self._restore(number, [held[k].tensor for k in members], old)

    def _restore(self, number: int, tensors: Sequence[Tensor], old: Tensor) -> None:
        active, span = self._at(number)
        on, old = self._on[span], old if old.shape == self._on[span].shape else old[span]
        active.write(tensors, lambda now: merged(now, on, old))

    def _at(self, number: int) -> tuple[ActiveWeights, slice]:
        """One layer or all, and where its active weights stand among all."""
        return (self._active, slice(None)) if number == _ALL else (self._active.part(number), self._active.span(number))

    def _groups(self, held: dict[int, Tensor], together: bool = True) -> list[tuple[int, list[int]]]:
        """All layers at once, if all have such a state and of one type, else one by one."""
        if together and len(held) == len(self._number) and len({(t.dtype, t.device) for t in held.values()}) == 1:
            return [(_ALL, list(held))]
        return [(number, [number]) for number in held]


class ZInForce:
    """From the first training forward of a step to the end of its update."""

    def __init__(self, context: Context, step: int):
        self._context, self._layers, self._step = context, context.layers, step
        self._rates: list[float] = []  # in each layer, once it is drawn
        self._suspended: list[SuspendedWeights] = []
        self._is_updating = False  # the optimizer may move weights

    @property
    def switches_off(self) -> bool:
        """Whether it acts at all."""
        return any(self._rates)

    def draw(self, in_kernels: bool) -> None:
        """Z_t. ``in_kernels``: these may take it upon themselves; in the parameters it acts where they don't."""
        random_mask = self._context.random_mask
        self._rates = random_mask.rates(self._step)
        if not self.switches_off:
            return
        if in_kernels:
            for layer, rate in zip(self._layers, self._rates, strict=True):
                hashed = random_mask.hash_key_and_threshold(layer, "z", self._step, rate)
                if self._context.kernels.hold_z(layer.parameter, *hashed):
                    layer.held_z = partial(self._kept, layer)
        if not all(layer.held_z for layer in self._layers):
            self._materialize(active for active in random_mask.active if not all(x.held_z for x in active.layers))
            torch.clear_autocast_cache()  # it may hold casts of the weights before

    def _materialize(self, active: Iterable[ActiveWeights]) -> None:
        new = [SuspendedWeights(each, self._draw(each)) for each in active]
        self._suspended += new
        if self._is_updating:
            self._save_states(new)

    def _draw(self, active: ActiveWeights) -> Tensor:
        return self._context.random_mask.draw(active, "z", self._step, self._rates)

    def materialize_z(self, layers: Collection[Layer]) -> None:
        """Torch is about to read these layers' weights: a Z that only sparse kernels know acts in them, too.

        What the kernels have computed stands, so that a backward that is still due may come.
        """
        wanted = {layer for layer in layers if layer.held_z is not None}
        if wanted:
            with ExitStack() as stack:
                for layer in wanted:
                    stack.enter_context(_unsafe_preserve_version_counter(layer.parameter))
                self._materialize(a for a in self._context.random_mask.active if not wanted.isdisjoint(a.layers))

    def _kept(self, layer: Layer) -> Tensor:
        (active,) = (each for each in self._context.random_mask.active if layer in each.layers)
        return active.kept(self._draw(active))[list(active.layers).index(layer)]

    def suspend(self) -> None:
        """The parameters hold M*W."""
        for suspended in self._suspended:
            suspended.restore()
        torch.clear_autocast_cache()

    def resume(self) -> None:
        """The parameters hold M*Z*W again."""
        for suspended in self._suspended:
            suspended.mask()
        torch.clear_autocast_cache()

    def begin_update(self) -> None:
        """The optimizer is about to move weights, and what it keeps of them."""
        self._is_updating = True
        self._save_states(self._suspended)

    def _save_states(self, of: Sequence[SuspendedWeights]) -> None:
        for suspended in of:
            suspended.save_states()

    def end(self) -> None:
        """After the update: what Z had switched off is as it was, weights and optimizer state."""
        for suspended in self._suspended:
            suspended.restore_states()
            suspended.restore()  # last, because a state may be the weight itself (SAM's "old_p")

    def mask_gradient(self, layer: Layer) -> None:
        """p.grad by M*Z, which the kernels may have done: but not by a Z that they did not know."""
        gradient, kernels = layer.parameter.grad, self._context.kernels
        assert gradient is not None
        if layer.suspended is not None or not kernels.made(layer.parameter, gradient):
            layer.mask_gradient()
        else:
            layer.gradient_is_masked()
        kernels.masked(layer.parameter, gradient)
