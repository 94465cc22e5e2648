"""When the topology changes and by how much, how large Z is, and when snapshots are taken.

A step is an applied optimizer step, counted from 1. All of this is plain arithmetic on step numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Decay:
    """The share of active weights that a round drops, over the progress (0 to 1) of the rounds."""

    kind: Literal["cosine", "linear", "constant"]
    start: float

    def __call__(self, progress: float) -> float:
        if self.kind == "cosine":
            return self.start / 2 * (1 + math.cos(math.pi * progress))
        if self.kind == "linear":
            return self.start * (1 - progress)
        return self.start


def cosine(start: float) -> Decay:
    """A drop fraction that falls along a cosine: f/2 * (1 + cos(pi * t / t_end)), as in RigL and in the paper.

    Args:
        start: f, the share of active weights that the first topology update drops.

    >>> from cigl import cosine
    >>> decay = cosine(0.3)
    >>> decay(0.0), round(decay(0.5), 3), decay(1.0)  # over the progress of the updates
    (0.3, 0.15, 0.0)
    """
    return Decay("cosine", start)


def linear(start: float) -> Decay:
    """A drop fraction that falls on a straight line: f * (1 - t / t_end).

    Args:
        start: f, the share of active weights that the first topology update drops.

    >>> from cigl import linear
    >>> linear(0.4)(0.25)
    0.30000000000000004
    """
    return Decay("linear", start)


def constant(start: float) -> Decay:
    """The same drop fraction in every topology update.

    Args:
        start: The share of active weights that is dropped.

    >>> from cigl import constant
    >>> constant(0.3)(0.9)
    0.3
    """
    return Decay("constant", start)


@dataclass(frozen=True)
class Rise:
    """The share of active weights that Z switches off: 0 up to ``begin`` and ``rate`` from ``until`` on.

    ``begin`` and ``until`` are shares of training. Between them the share rises on a straight line; where they are the
    same, Z is switched on at once.
    """

    rate: float
    begin: float
    until: float

    def __call__(self, progress: float) -> float:
        if progress >= self.until:
            return self.rate
        if progress <= self.begin:
            return 0.0
        return self.rate * ((progress - self.begin) / (self.until - self.begin))


def rise(rate: float, *, begin: float = 0.0, until: float = 0.75) -> Rise:
    """A random mask that grows: from 0 at ``begin`` of training to ``rate`` at ``until``, on a straight line.

    Morerio et al. 2017 let dropout rise so ("curriculum dropout"): a network learns first and is regularized later.

    Args:
        rate: The share of active weights that Z switches off from ``until`` on.
        begin: The share of training before which nothing is switched off.
        until: The share of training from which on the rate stays.

    >>> from cigl import rise
    >>> mask = rise(0.2, until=0.5)
    >>> [mask(progress) for progress in (0, 0.25, 0.5, 1)]
    [0.0, 0.1, 0.2, 0.2]
    """
    return Rise(rate, begin, until)


def rate_at(random_mask: float | Rise | None, progress: float) -> float:
    """What a method's ``random_mask`` says at a share of training."""
    if random_mask is None:
        return 0.0
    return random_mask(progress) if isinstance(random_mask, Rise) else random_mask


@dataclass(frozen=True)
class Timetable:
    """What is due at the end of a step. ``update_every`` or ``average_from`` None: never."""

    steps: int
    steps_per_epoch: int
    update_every: int | None = None
    update_until: float = 0.0
    drop_fraction: Decay = constant(0.0)
    average_from: float | None = None
    snapshots_per_epoch: int = 1

    @property
    def update_end(self) -> int:
        """The last step in which the topology may change."""
        return math.floor(self.update_until * self.steps + 1e-9)

    def updates(self, step: int) -> bool:
        return self.update_every is not None and step % self.update_every == 0 and step <= self.update_end

    @property
    def update_steps(self) -> list[int]:
        every = self.update_every
        return [] if every is None else list(range(every, self.update_end + 1, every))

    def fraction(self, step: int) -> float:
        """The drop fraction f_t of a round at this step."""
        return self.drop_fraction(step / max(1, self.update_end))

    def snapshots(self, step: int) -> bool:
        """After T*: at the end of each epoch (Algorithm 1), or of each of its equal parts, up to one per step."""
        if self.average_from is None or step <= self.average_from * self.steps + 1e-9:
            return False
        parts, before = (t * self.snapshots_per_epoch // self.steps_per_epoch for t in (step, step - 1))
        return parts > before

    @property
    def snapshot_steps(self) -> list[int]:
        if self.average_from is None:
            return []
        return [t for t in range(math.floor(self.average_from * self.steps), self.steps + 1) if self.snapshots(t)]


@dataclass(frozen=True)
class CycleTimetable(Timetable):
    """Sup-tickets (Yin et al. 2022): ordinary rounds, then cycles up to the last step.

    A cycle starts with a round that drops ``cycle_drop`` and ends with a ticket. Whole cycles are laid
    back from the end of training, as many as fit behind ``average_from``.
    """

    cycle_epochs: int = 2
    cycle_drop: float = 0.5
    lr_high: float = 0.05
    lr_low: float = 0.005

    @property
    def cycle(self) -> int:
        return self.cycle_epochs * self.steps_per_epoch

    @property
    def first_cycle(self) -> int:
        """The step at whose end the first cycle begins."""
        room = self.steps - math.floor((self.average_from or 0.0) * self.steps + 1e-9)
        return self.steps - room // self.cycle * self.cycle

    def _boundary(self, step: int) -> bool:
        return step >= self.first_cycle and (step - self.first_cycle) % self.cycle == 0

    def updates(self, step: int) -> bool:
        if step >= self.first_cycle:
            return self._boundary(step) and step < self.steps
        return super().updates(step)

    @property
    def update_steps(self) -> list[int]:
        early = [t for t in super().update_steps if t < self.first_cycle]
        return early + [t for t in range(self.first_cycle, self.steps, self.cycle) if t > 0]

    def fraction(self, step: int) -> float:
        return self.cycle_drop if step >= self.first_cycle else super().fraction(step)

    def snapshots(self, step: int) -> bool:
        return self._boundary(step) and step > self.first_cycle

    def learning_rate(self, before: Callable[[int], float] | None = None) -> Callable[[int], float]:
        """A factor for ``LambdaLR`` called once per step: ``before`` until the cycles, then a saw.

        Within a cycle it falls from ``lr_high`` to ``lr_low`` (Izmailov et al. 2018, equation 1), both as
        shares of the optimizer's initial learning rate, so that a ticket is taken at the lowest.
        """

        def factor(step: int) -> float:
            if step < self.first_cycle:
                return before(step) if before else 1.0
            place = ((step - self.first_cycle) % self.cycle + 1) / self.cycle
            return (1 - place) * self.lr_high + place * self.lr_low

        return factor
