"""The difference of two models on the same test points."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cigl.calibrate.intervals import percentile_interval
from cigl.calibrate.metrics import HIGHER_IS_BETTER, is_calibration_error
from cigl.calibrate.report import Report, in_column
from cigl.errors import CiglError


@dataclass(frozen=True)
class Difference:
    """``a - b`` with its 95 % interval, and the probability that its true sign is not the one shown."""

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    wrong_sign: float

    @property
    def better(self) -> str:
        """Which of the two the difference speaks for ("a" or "b"), or "" where the interval holds 0.

        The gap has a sign, and nearer to 0 is better: its difference speaks for neither.
        """
        if self.name == "gap" or self.low <= 0 <= self.high:
            return ""
        return "a" if (self.difference > 0) == (self.name in HIGHER_IS_BETTER) else "b"


@dataclass(frozen=True)
class Comparison:
    """What ``cigl.compare`` returns; print it, or look up a difference by name."""

    n: int
    differences: dict[str, Difference]

    def __getitem__(self, name: str) -> Difference:
        return self.differences[name]

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "differences": {name: asdict(row) for name, row in self.differences.items()}}

    def __str__(self) -> str:
        lines = [f"a - b on the same {self.n} samples; 95 % intervals of the paired bootstrap"]
        lines.append(f"{'':<20}{'a':>9}{'b':>9}{'a - b':>9}{'low':>9}{'high':>9}{'P(wrong sign)':>15}  better")
        for row in self.differences.values():
            numbers = "".join(map(in_column, (row.a, row.b, row.difference, row.low, row.high)))
            lines.append(f"{row.name:<20}{numbers}{row.wrong_sign:15.3f}  {row.better}".rstrip())
        return "\n".join(lines)


def compare(a: Report, b: Report) -> Comparison:
    """Paired bootstrap of every difference that both reports hold.

    Every report draws the same resamples of its n points, so the difference of two reports' draws is a paired
    draw. Calibration errors are reflected about the estimate as in their own intervals, which takes off what the
    two biases don't share. Reports of different test sets are refused: the labels in order tell.

    >>> from cigl.calibrate import report
    >>> labels = [0, 1] * 50
    >>> good = report(probabilities=[[0.8, 0.2], [0.2, 0.8]] * 50, labels=labels)
    >>> bad = report(probabilities=[[0.6, 0.4], [0.4, 0.6]] * 50, labels=labels)
    >>> compare(good, bad)["nll"].better
    'a'
    """
    for one in (a, b):
        if not isinstance(one, Report):
            raise CiglError(f"compare takes two reports, not {type(one).__name__}: make them with cigl.evaluate.")
    if not np.array_equal(a.samples.labels, b.samples.labels):
        raise CiglError(f"the reports are of different test sets ({a.n} and {b.n} samples, or other labels, or another "
                        "order): evaluate both models on the same loader, without shuffling.")  # fmt: skip
    if a.resamples != b.resamples:
        raise CiglError(f"the reports have {a.resamples} and {b.resamples} resamples: evaluate both with as many.")
    names = [name for name in a.metrics if name in b.metrics]
    return Comparison(a.n, {name: _difference(name, a, b) for name in names})


def _difference(name: str, a: Report, b: Report) -> Difference:
    value = float(a.metrics[name]) - float(b.metrics[name])
    draws = a.draws[name] - b.draws[name]
    if is_calibration_error(name):
        draws = 2 * value - draws
    # A difference of 0 has no sign to be wrong about: half. A draw of 0 is half against.
    against = (draws * np.sign(value) < 0).mean() + (draws == 0).mean() / 2 if value else 0.5
    return Difference(name, float(a.metrics[name]), float(b.metrics[name]), value, *percentile_interval(draws),
                      float(against))  # fmt: skip
