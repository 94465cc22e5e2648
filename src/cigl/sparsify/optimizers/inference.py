"""Which state of an unknown optimizer is one number per weight: what its steps show.

A state tensor is *per weight* if its entry for a weight depends on that weight, its gradient and the entry alone. In a
step, the weights outside M (and outside Z, in a dense layer) have value 0 and gradient 0. So a state that is per weight
does the same to all their entries: new = f(old), and f is affine in every common rule (momentum and second moments
decay, sums and copies stay). Preconditioners (Shampoo) and moments in an eigenbasis (SOAP) have entries there that
depend on other weights.

A step is evidence only if the entries of active weights did change in different ways; SOAP's first step, for example,
leaves all its second moments at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from cigl.sparsify.tensors.flat_indexing import read

Fresh = float | Literal["weight"]  # the value of a new weight's state; "weight": a copy of the weight itself

_SAMPLE = 4096  # entries that are looked at
_ENOUGH = 16  # entries from which a common rule is read


@dataclass(frozen=True)
class Verdict:
    """Whether a state is per weight, and then its value for a weight that is new."""

    per_weight: bool
    fresh: Fresh = 0.0


class Masked(Protocol):
    """A sparse parameter, as far as its optimizer is concerned."""

    parameter: nn.Parameter
    bits: Tensor  # M: 0 where a weight is inactive

    @property
    def weight(self) -> Tensor: ...

    @property
    def kept(self) -> Tensor:
        """M*Z: 0 where a weight takes no part in the step under way."""


@dataclass(frozen=True, eq=False)
class Observation:
    """Entries of one layer before an optimizer's step."""

    layer: Masked
    positions: Tensor
    weights: Tensor
    states: dict[str, Tensor]
    active: Tensor  # bool

    @classmethod
    def of(cls, layer: Masked, states: dict[str, Tensor]) -> Observation:
        stride = layer.bits.numel() // _SAMPLE | 1  # odd, so that it doesn't run along a column
        positions = torch.arange(0, layer.bits.numel(), stride, device=layer.bits.device)
        before = {name: read(state, positions) for name, state in states.items()}
        active = read(layer.bits, positions) != 0
        return cls(layer, positions, read(layer.weight, positions), before, active)

    @property
    def needs_z(self) -> bool:
        """In a dense layer, only weights that Z has switched off are zero, whose other states may not be."""
        return int((~self.active).sum()) < _ENOUGH

    def verdicts(self, states: dict[str, Tensor]) -> dict[str, Verdict]:
        """After the step, while Z is still in force: of the states that it shows something about."""
        exists = self.active
        if self.needs_z:
            exists = exists & (read(self.layer.kept, self.positions) != 0)
        moved = read(self.layer.weight, self.positions)
        found = {}
        for name, state in states.items():
            after = read(state, self.positions)
            verdict = judge(self.states.get(name), after, exists, (self.weights, moved))
            if verdict is not None:
                found[name] = verdict
        return found


def judge(before: Tensor | None, after: Tensor, exists: Tensor, weights: tuple[Tensor, Tensor]) -> Verdict | None:
    """What a state's entries before (None: there were none) and after a step show; None: nothing.

    ``exists`` is False for weights whose value and gradient were 0; ``weights`` are the values before and after.
    """
    old = torch.zeros_like(after) if before is None else before
    outside = ~exists
    if int(outside.sum()) < _ENOUGH or _affine(old[exists], after[exists]) is not None:
        return None
    rule = _affine(old[outside], after[outside])
    if rule is None:
        return Verdict(per_weight=False)
    if any(_is_copy(after[exists], values[exists]) for values in weights):
        return Verdict(per_weight=True, fresh="weight")
    factor, shift = rule
    stays = abs(factor - 1) < 1e-6
    return Verdict(per_weight=True, fresh=0.0 if stays else shift / (1 - factor))


def _affine(old: Tensor, new: Tensor) -> tuple[float, float] | None:
    """Factor and shift with new = factor * old + shift, up to rounding, if there are such; 0 where all are the same."""
    if not len(new):
        return 0.0, 0.0
    old, exact, eps = old.double(), new.double(), torch.finfo(new.dtype).eps
    low, high = int(old.argmin()), int(old.argmax())
    width = float(old[high] - old[low])
    factor = float(exact[high] - exact[low]) / width if width else 0.0
    shift = float(exact[low]) - factor * float(old[low])
    error = (exact - (factor * old + shift)).abs().max()
    bound = 4 * eps * float(exact.abs().max())
    return (factor, shift) if float(error) <= bound else None


def _is_copy(state: Tensor, weights: Tensor) -> bool:
    """A copy that a step has moved is still near; momentum and the like have nothing of the weights."""
    size = float(weights.double().norm())
    return size > 0 and float((state.double() - weights.double()).norm()) < 0.5 * size
