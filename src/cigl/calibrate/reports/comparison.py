"""The difference of two models on the same test points."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.calibrate.measures.intervals import percentile_interval
from cigl.calibrate.registry import metric
from cigl.calibrate.reports.classification import Estimate, Report
from cigl.calibrate.reports.text import cell
from cigl.common.errors import CiglError, unknown
from cigl.common.notebook import paragraphs, table

_HEAD = ("", "a", "b", "a - b", "low", "high", "P(wrong sign)", "better")


@dataclass(frozen=True)
class Difference:
    """``a - b`` with its 95 % interval (``low``, ``high``).

    ``wrong_sign`` is the probability that the sign of the true difference is not the one shown.

    >>> from cigl.calibrate import Difference
    >>> Difference("nll", a=0.5, b=0.7, difference=-0.2, low=-0.3, high=-0.1, wrong_sign=0.0).better
    'a'
    """

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

        Where nearer to 0 is better (the gap, which has a sign), the difference speaks for neither.
        """
        better = metric(self.name).better
        if better == "zero" or self.low <= 0 <= self.high:
            return ""
        return "a" if (self.low > 0) == (better == "higher") else "b"


@dataclass(frozen=True)
class Comparison:
    """What ``cigl.compare`` returns; print it, or look up a difference by name.

    >>> from cigl import compare
    >>> from cigl.calibrate import report
    >>> one = report(probabilities=[[0.8, 0.2], [0.2, 0.8]] * 50, labels=[0, 1] * 50)
    >>> compare(one, one)["ece"].difference
    0.0
    """

    n: int
    differences: dict[str, Difference]
    bins: int | None = None  # those both reports were asked for: "ece" is then "ece_15"

    def __getitem__(self, name: str) -> Difference:
        for known in (name, f"{name}_{self.bins}"):
            if known in self.differences:
                return self.differences[known]
        raise unknown("difference", name, self.differences)

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "differences": {name: asdict(row) for name, row in self.differences.items()}}

    def __str__(self) -> str:
        lines = [
            f"{name:<18}{''.join(f'{number:>10}' for number in numbers)}{sign:>15}  {better}".rstrip()
            for name, *numbers, sign, better in (_HEAD, *self._rows())
        ]
        return "\n".join([self._basis(), *lines])

    def _repr_html_(self) -> str:
        return paragraphs(self._basis()) + table(_HEAD, self._rows())

    def _basis(self) -> str:
        return f"a - b on the same {self.n:,} samples; 95 % intervals of the paired bootstrap"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                row.name,
                *(cell(row.name, x) for x in (row.a, row.b, row.difference, row.low, row.high)),
                f"{row.wrong_sign:.3f}",
                row.better,
            )
            for row in self.differences.values()
        ]


def compare(a: Report, b: Report) -> Comparison:
    """The paired bootstrap of every difference between two models on the same test points.

    Args:
        a: A report of ``cigl.evaluate``.
        b: Another one, on the same loader without shuffling. Reports of different test sets are refused, by their
            labels in order.

    Every report draws the same resamples of its n points, so the difference of two reports' draws is a paired
    draw. Calibration errors are biased, and those of the better model more: so their interval is made of the two
    reports' own corrected intervals (MOVER, Zou & Donner 2008). In simulations it covers at least 90 %
    (docs/calibration.md); mostly it is wider than it need be.

    >>> from cigl import compare
    >>> from cigl.calibrate.reports.classification import report
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
        raise CiglError(
            f"the reports are of different test sets ({a.n} and {b.n} samples, or other labels, or another "
            "order): evaluate both models on the same loader, without shuffling."
        )
    if a.resamples != b.resamples:
        raise CiglError(f"the reports have {a.resamples} and {b.resamples} resamples: evaluate both with as many.")
    names = [name for name in a.metrics if name in b.metrics]
    return Comparison(a.n, {name: _difference(name, a, b) for name in names}, a.bins if a.bins == b.bins else None)


def _difference(name: str, a: Report, b: Report) -> Difference:
    one, two = a.metrics[name], b.metrics[name]
    value = float(one) - float(two)
    draws = a.draws[name] - b.draws[name]
    biased = metric(name).biased
    if biased:
        low, high = _mover(one, two, a.draws[name], b.draws[name])
    else:
        low, high = percentile_interval(draws)
    low, high = min(low, value), max(high, value)
    if not value:  # no sign to be wrong about
        against = 0.5
    elif biased:  # as if normal, with the interval's reach towards 0
        reach = (value - low if value > 0 else high - value) / 1.96
        against = math.erfc(abs(value) / reach / math.sqrt(2)) / 2 if reach else 0.0
    else:  # a draw of 0 is half against
        against = float((draws * np.sign(value) < 0).mean() + (draws == 0).mean() / 2)
    return Difference(name, float(one), float(two), value, low, high, against)


def _mover(a: Estimate, b: Estimate, draws_a: Array, draws_b: Array) -> tuple[float, float]:
    """The interval of a difference from two intervals and the correlation of their draws.

    Each counts from where the error is without its noise. One that is not significant counts from 0, and
    its draws, which then are of noise, don't say how the two go together.
    """
    from_a, from_b = _without_noise(a), _without_noise(b)
    spread = min(float(draws_a.std()), float(draws_b.std()))
    shared = float(np.corrcoef(draws_a, draws_b)[0, 1]) if min(a.low, b.low, spread) > 0 else 0.0
    low = _apart(from_a - a.low, b.high - from_b, shared)
    high = _apart(a.high - from_a, from_b - b.low, shared)
    return from_a - from_b - low, from_a - from_b + high


def _without_noise(e: Estimate) -> float:
    if e.low <= 0:
        return 0.0
    square = float(e) ** 2 - (e.floor or 0.0) ** 2  # noise adds up in squares
    return min(max(math.sqrt(max(square, 0.0)), e.low), e.high)


def _apart(x: float, y: float, correlation: float) -> float:
    return math.sqrt(max(x * x - 2 * correlation * x * y + y * y, 0.0))
