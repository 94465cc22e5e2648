"""What is collected near the end of training: the running mean of Algorithm 1, or the snapshots themselves.

Both are fed one dictionary of tensors per snapshot and know nothing of masks: what goes in (M*Z*W, its
expectation M*pW, a ticket) is the sparsifier's business. Means are kept in float32 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Values = Mapping[str, Tensor]


class Mean:
    """A running mean, and with ``second_moment`` the variance about it (Welford's recurrence).

    The mean is Algorithm 1's W_CigL; mean and variance together are the moment-matched posterior of the
    paper's appendix, as in SWAG's diagonal (Maddox et al. 2019).
    """

    def __init__(self, second_moment: bool = False):
        self.second_moment = second_moment
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}  # sum of squared deviations

    def add(self, values: Values) -> None:
        self.count += 1
        for name, value in values.items():
            value = value.detach().to(torch.promote_types(value.dtype, torch.float32))
            if self.count == 1:
                self.mean[name] = value.clone()
                if self.second_moment:
                    self.squares[name] = torch.zeros_like(value)
                continue
            deviation = value - self.mean[name]
            self.mean[name].add_(deviation, alpha=1 / self.count)
            if self.second_moment:
                self.squares[name].addcmul_(deviation, value - self.mean[name])

    def variance(self) -> dict[str, Tensor]:
        """Of the snapshots (divided by their number)."""
        return {name: square / self.count for name, square in self.squares.items()}

    def state_dict(self) -> dict[str, Any]:
        mean, squares = ({name: value.clone() for name, value in part.items()} for part in (self.mean, self.squares))
        return {"count": self.count, "mean": mean, "squares": squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean = {name: value.clone() for name, value in state["mean"].items()}
        self.squares = {name: value.clone() for name, value in state["squares"].items()}


class Snapshots:
    """Every snapshot as it is, so that predictions can be averaged instead of weights."""

    def __init__(self) -> None:
        self.models: list[dict[str, Tensor]] = []

    @property
    def count(self) -> int:
        return len(self.models)

    def add(self, values: Values) -> None:
        self.models.append({name: value.detach().clone() for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"models": [dict(model) for model in self.models]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.models = [{name: value.clone() for name, value in model.items()} for model in state["models"]]


Collection = Mean | Snapshots
