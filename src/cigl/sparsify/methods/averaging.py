"""What is collected near the end of training: the running mean of Algorithm 1, or the snapshots themselves.

Both are fed one dictionary of tensors per snapshot and know nothing of masks: what goes in (M*Z*W, its
expectation M*pW, a ticket) is the sparsifier's business. Means are kept in float32 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cigl.common.errors import CiglError

Values = Mapping[str, Tensor]


class RunningMean:
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
        if self.count:
            _check_names(values, self.mean)
        self.count += 1
        for name, value in values.items():
            value = value.detach().to(wide(value.dtype))
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

    def load_state_dict(self, state: Mapping[str, Any], parameters: Values) -> None:
        """``parameters`` are the model's: what was averaged must have their names and shapes."""
        count = state["count"]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"{count!r} snapshots were averaged")
        expected = {name: p.to(wide(p.dtype)) for name, p in parameters.items()} if count else {}
        mean = _fitting(state["mean"], expected)
        squares = _fitting(state["squares"], expected if self.second_moment else {})
        self.count, self.mean, self.squares = count, mean, squares


class Snapshots:
    """Every snapshot as it is, so that predictions can be averaged instead of weights."""

    def __init__(self) -> None:
        self.models: list[dict[str, Tensor]] = []

    @property
    def count(self) -> int:
        return len(self.models)

    def add(self, values: Values) -> None:
        if self.models:
            _check_names(values, self.models[0])
        self.models.append({name: value.detach().clone() for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"models": [dict(model) for model in self.models]}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Values) -> None:
        """``parameters`` are the model's; a snapshot has its buffers besides."""
        self.models = [_fitting(model, parameters, others=True) for model in state["models"]]


def _check_names(values: Values, before: Values) -> None:
    if values.keys() != before.keys():
        name = min(values.keys() ^ before.keys())
        raise CiglError(
            f"{name} was {'added to' if name in values else 'removed from'} the model after the first snapshot was "
            "taken: change the model before averaging begins, or detach and attach again."
        )


def wide(dtype: torch.dtype) -> torch.dtype:
    """That a mean is kept in."""
    return torch.promote_types(dtype, torch.float32)


def _fitting(values: Values, expected: Values, others: bool = False) -> dict[str, Tensor]:
    """Copies of the values, on the devices of the ``expected`` ones, if names, shapes and types fit."""
    for name, known in expected.items():
        if name not in values or values[name].shape != known.shape or values[name].dtype != known.dtype:
            raise ValueError(f"what was collected of {name} does not fit the model")
    if not others and (unknown := values.keys() - expected.keys()):
        raise ValueError(f"{min(unknown)} was collected, which is not in the model")
    return {name: value.to(expected.get(name, value).device, copy=True) for name, value in values.items()}


Collection = RunningMean | Snapshots
