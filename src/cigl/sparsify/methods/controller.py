"""How strong Z has to be: a few numbers that follow a network's over-confidence on held-out examples.

    gap_k  = mean confidence - accuracy, on the held-out examples of observation k, with standard error e_k
    mean_k = (mean_{k-1} + gap_k) / 2
    s_k    = s_{k-1} + gain * ( max(0, mean_k - max(tolerance, e_k)) + min(0, mean_k) ),    0 <= s_k <= most

s is a factor of the method's rates, at first 0. Z regularises, and costs accuracy where nothing has to be regularised.
So its strength grows only while a network is over-confident by more than noise, and by more than is left to a
temperature, and shrinks as soon as the network is under-confident: integral control with a dead band. Where its
constants come from, and what is still to be shown: evidence/auto.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from cigl.calibrate.measures.samples import checked_input
from cigl.common.errors import CiglError
from cigl.common.numbers import is_number, is_whole

_KEEP = 0.5  # of the mean gap, when a new one is observed


@dataclass(frozen=True)
class Rule:
    """The constants of a controller.

    Args:
        gain: By how much the strength changes for each observation and each unit of over-confidence (1: 100 points).
        tolerance: Over-confidence that does not count: a temperature removes it as well.
        patience: Observations before the strength may grow: a network that has seen its examples only a few times
            has not learned them by heart, however confident a high learning rate makes it.
        most: The largest strength.
    """

    gain: float
    tolerance: float
    patience: int
    most: float


class Observation(NamedTuple):
    """What was seen before a step, and the strength from that step on."""

    step: int
    gap: float  # mean confidence - accuracy
    error: float  # its standard error
    strength: float


@dataclass
class Controller:
    """The strength of Z, and what it follows from. ``observe`` collects; ``conclude`` decides, at most once per epoch.

    >>> import torch
    >>> controller = Controller(Rule(gain=4.0, tolerance=0.02, patience=0, most=2.5))
    >>> logits = torch.tensor([[0.0, 4.0]] * 400)
    >>> controller.observe(logits, (torch.arange(400) % 4 > 0).long())  # 98 % sure, 75 % right
    >>> controller.conclude(step=101)
    >>> round(controller.gap, 2), round(controller.strength, 2)
    (0.23, 0.84)
    """

    rule: Rule
    strength: float = 0.0
    mean: float = 0.0  # of the gaps, the last ones counting most
    classes: int = 0  # of the logits that were observed
    pending: list[float] = field(default_factory=lambda: [0.0] * 3)  # examples, and sums of gaps and of their squares
    history: list[Observation] = field(default_factory=list)

    @property
    def gap(self) -> float | None:
        """Mean confidence - accuracy as it was observed last."""
        count, total, _ = self.pending
        if count:
            return total / count
        return self.history[-1].gap if self.history else None

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        """Held-out examples, as many batches as there are; what can't be used is refused, and changes nothing."""
        scores, labels, _ = checked_input(logits, None, labels)
        if not bool(scores.isfinite().all()):
            raise CiglError("logits have NaN or infinity: nothing was observed.")
        if self.classes not in (0, scores.shape[1]):
            raise CiglError(
                f"logits have {scores.shape[1]} classes, and those before had {self.classes}: nothing was observed."
            )
        confidence, predicted = scores.double().softmax(1).max(1)
        gaps = confidence - (predicted == labels).double()
        self.classes = scores.shape[1]
        sums = (len(gaps), float(gaps.sum()), float(gaps.square().sum()))
        self.pending = [before + now for before, now in zip(self.pending, sums, strict=True)]

    def conclude(self, step: int, may_grow: bool = True) -> None:
        """The strength from ``step`` on, by what was observed since the last conclusion; the same without any.

        It may not grow where too little of the training is left to learn under a stronger mask.
        """
        count, total, squares = self.pending
        if not count:
            return
        gap = total / count
        # as if one more example had been wrong: a few that happen to agree prove nothing
        error = math.sqrt(max(0.0, squares - total * gap) + 1) / (count + 1)
        self.mean = _KEEP * self.mean + (1 - _KEEP) * gap if self.history else gap
        grows = may_grow and len(self.history) >= self.rule.patience
        excess = max(0.0, self.mean - max(self.rule.tolerance, error)) if grows else 0.0
        change = self.rule.gain * (excess + min(0.0, self.mean))
        self.strength = min(self.rule.most, max(0.0, self.strength + change))
        self.pending = [0.0] * 3
        self.history.append(Observation(step, gap, error, self.strength))

    def state_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "strength": self.strength,
            "mean": self.mean,
            "classes": self.classes,
            "pending": list(self.pending),
            "history": [list(each) for each in self.history],
        }

    def loaded(self, state: Mapping[str, Any]) -> Controller:
        """Another one in this ``state``; ValueError where it can't be one."""
        history = [Observation(int(step), *others) for step, *others in state["history"]]
        numbers = [state["strength"], state["mean"], *state["pending"], *(x for each in history for x in each)]
        if not all(is_number(x) and math.isfinite(x) for x in numbers) or len(state["pending"]) != 3:
            raise ValueError(f"controller {dict(state)}")
        if not 0 <= state["strength"] <= self.rule.most or not is_whole(state["classes"]):
            raise ValueError(f"a controller of strength {state['strength']!r} with {state['classes']!r} classes")
        pending = [float(x) for x in state["pending"]]
        return Controller(self.rule, state["strength"], state["mean"], state["classes"], pending, history)
