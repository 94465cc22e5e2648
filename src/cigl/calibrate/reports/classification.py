"""The report on one model and one test set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from cigl.calibrate.measures import intervals
from cigl.calibrate.measures.bins import Array, check_bins
from cigl.calibrate.measures.metrics import root
from cigl.calibrate.measures.samples import Samples, checked_input, measure_samples
from cigl.calibrate.registry import BINS, Metric
from cigl.calibrate.reports import store, text
from cigl.calibrate.reports.values import Measures
from cigl.common.errors import CiglError, unknown
from cigl.common.notebook import paragraphs, table

RESAMPLES = 1000
NULL_DRAWS = 200  # label sets drawn from a model's own probabilities


class Estimate(float):
    """A number with its 95 % interval (``low``, ``high``) and, for calibration errors, its noise ``floor``.

    >>> from cigl.calibrate import Estimate
    >>> e = Estimate(0.02, low=0.01, high=0.03, floor=0.006)
    >>> e > 0.015, e.floor
    (True, 0.006)
    """

    low: float
    high: float
    floor: float | None

    def __new__(cls, value: float, low: float, high: float, floor: float | None = None) -> Estimate:
        self = super().__new__(cls, value)
        self.low, self.high, self.floor = low, high, floor
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimate, (float(self), self.low, self.high, self.floor)

    def to_dict(self) -> dict[str, float]:
        parts = {"value": float(self), "low": self.low, "high": self.high}
        return parts if self.floor is None else parts | {"floor": self.floor}


@dataclass(frozen=True)
class Bin:
    """One bin (low, high] of confidence, a row of ``report.table``.

    ``accuracy_low`` and ``accuracy_high`` are a 95 % Clopper-Pearson interval. Without samples a bin has neither
    confidence nor accuracy.

    >>> from cigl.calibrate import report
    >>> table = report(probabilities=[[0.9, 0.1]] * 4, labels=[0, 0, 0, 1], bins=10).table
    >>> table[8].count, table[8].accuracy
    (4, 0.75)
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Accuracy, proper scores and calibration errors with 95 % intervals; ``cigl.evaluate`` makes it.

    Every number is an attribute (a float with ``.low``, ``.high`` and, for calibration errors, ``.floor``) under
    the name that says its scheme: ``accuracy``, ``top5`` (more than 5 classes), ``nll``, ``brier`` (0 to 2),
    ``gap`` (mean confidence - accuracy), ``ece_15`` and ``ece_10`` (equal width), ``ece_mass_15`` (equal mass),
    ``ece_classwise_15`` (mean over classes), ``mce_15``, ``l2_debiased_15``, ``aurc``. The names ``ece``,
    ``ece_classwise``, ``mce`` and ``l2_debiased`` stand for the scheme with the asked-for bins.

    Intervals are bootstrap percentiles; for calibration errors, whose bootstrap is biased, see
    ``intervals.calibration_interval``. The floor is the mean of what a perfectly calibrated model with these
    probabilities would show on this many samples: exact for top-label ECEs, from 200 draws for the others.
    Bootstrap bins are those of the data (the edges of equal-mass bins don't move). Below about 30
    samples no bootstrap can be believed.

    >>> from cigl.calibrate import report
    >>> r = report(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1])
    >>> round(r.accuracy, 3), round(r.ece, 3), r.ece == r.ece_15
    (0.667, 0.3, True)
    """

    n: int
    classes: int
    bins: int
    metrics: dict[str, Estimate]
    table: list[Bin]
    samples: Samples
    draws: dict[str, Array]

    def __getattr__(self, name: str) -> Estimate:
        metrics = self.__dict__.get("metrics", {})  # absent while a copy is being made
        if name in metrics:
            return metrics[name]  # type: ignore[no-any-return]
        if (asked := f"{name}_{self.__dict__.get('bins')}") in metrics:
            return metrics[asked]  # type: ignore[no-any-return]
        raise AttributeError(str(unknown("number of a report:", name, metrics)))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        mine, theirs = store.arrays(self), store.arrays(other)
        same = mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        return same and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def resamples(self) -> int:
        return int(self.draws["nll"].size)

    def to_dict(self) -> dict[str, Any]:
        """Plain data without what is kept per sample. Names carry their scheme."""
        return {
            "n": self.n,
            "classes": self.classes,
            "bins": self.bins,
            "resamples": self.resamples,
            "metrics": {name: estimate.to_dict() for name, estimate in self.metrics.items()},
            "table": [asdict(row) for row in self.table],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], samples: Samples, draws: dict[str, Array]) -> Report:
        metrics = {
            name: Estimate(**{k: float(v) for k, v in parts.items()}) for name, parts in plain["metrics"].items()
        }
        table = [Bin(**row) for row in plain["table"]]
        return cls(plain["n"], plain["classes"], plain["bins"], metrics, table, samples, draws)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``path`` (.json) and, beside it, what is kept per sample in an ``.npz`` that goes with it."""
        store.write(self, path)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Report:
        """Read what ``to_json`` wrote; the result equals the report that was written."""
        parts = store.read(path)
        try:
            read = cls.from_dict(*parts)
            store.check(read)
        except store.DAMAGE:
            raise store.damaged(path) from None
        return read

    def smooth_ece(self) -> float:
        """SmoothECE (Blasiok & Nakkiran 2023), which needs no bins; from the extra ``cigl[smooth]``.

        >>> from cigl.calibrate import report
        >>> r = report(probabilities=[[0.9, 0.1]] * 10, labels=[0] * 9 + [1])
        >>> r.smooth_ece() < 0.01
        True
        """
        try:
            import relplot
        except ImportError:
            raise CiglError("smooth_ece needs relplot: pip install 'cigl[smooth]'.") from None
        return float(relplot.smECE(self.samples.confidence, self.samples.correct.astype(np.float64)))

    def reliability_diagram(self, path: str | os.PathLike[str]) -> None:
        """Draw the reliability diagram; the suffix says how: .svg, .png or .pdf (needs ``cigl[plot]``)."""
        from cigl.calibrate.reports.diagram import reliability_diagrams

        reliability_diagrams({"": self}, path)

    @property
    def verdict(self) -> str:
        """The report in a sentence."""
        return text.verdict(self)

    def explain(self) -> str:
        """What the numbers of the table mean."""
        return text.explanation({name: name for name in self.metrics})

    def __str__(self) -> str:
        return "\n".join([text.wrapped(self.verdict), "", *text.table(self)])

    def _repr_html_(self) -> str:
        return paragraphs(self.verdict, text.basis(self)) + table(text.HEAD, text.rows(self))

    def __repr__(self) -> str:
        shown = [f"{name} {text.cell(name, self.metrics[name])}" for name in ("accuracy", "nll", "gap")]
        shown += [f"{name} {text.cell('ece_15', x)}" for name, x in (("ece", self.ece), ("floor", self.ece.floor or 0))]
        return f"<Report on {text.samples(self.n)}, {self.classes} classes: {', '.join(shown)}>"


def report(
    *, logits: Any = None, probabilities: Any = None, labels: Any, bins: int = BINS, resamples: int = RESAMPLES
) -> Report:
    """The calibration report on predictions that are already there. Give exactly one of logits and probabilities.

    Args:
        logits: Of shape (samples, classes).
        probabilities: Of shape (samples, classes); each row sums to 1.
        labels: Class numbers from 0, of shape (samples,).
        bins: How many bins the calibration errors have, at most 1,000.
        resamples: How many resamples the bootstrap draws.

    >>> import torch
    >>> from cigl.calibrate import report
    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> round(report(logits=logits, labels=[0, 2]).nll, 4)
    0.8955
    """
    bins, resamples = check_bins(bins), intervals.check_resamples(resamples)
    scores, own, is_logits = checked_input(logits, probabilities, labels)
    samples, all_probabilities = measure_samples(scores, own, is_logits)
    measures = Measures(samples, all_probabilities, bins, torch.float64 if is_logits else scores.dtype)
    values = measures(np.ones((1, samples.n), dtype=np.int32))
    draws = _joined(measures(weights) for weights in intervals.resamples(samples.n, resamples, measures.order))
    labels_drawn = intervals.drawn_labels(all_probabilities, NULL_DRAWS, measures.order)
    null = _joined(measures.of_labels(drawn) for drawn in labels_drawn)
    floors = _floors(null, measures.floors())
    metrics = {
        each.name: _estimate(
            each, float(values[each.name][0]), draws[each.name], null.get(each.name), floors.get(each.name)
        )
        for each in measures.metrics
    }
    draws |= {each.name: root(draws[each.name]) for each in measures.metrics if each.squared}
    return Report(samples.n, scores.shape[1], bins, metrics, _table(measures), samples, draws)


def _joined(blocks: Any) -> dict[str, Array]:
    parts = list(blocks)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _floors(null: Mapping[str, Array], exact: Mapping[str, float]) -> dict[str, float]:
    """The means of the draws; what is known exactly also corrects the means that go with it (a control variate)."""
    name, expected = next(iter(exact.items()))
    known = null[name] - null[name].mean()
    spread, off = float(known @ known), expected - float(null[name].mean())
    slopes = {other: float(known @ values) / spread if spread else 0.0 for other, values in null.items()}
    return {other: max(float(values.mean()) + slopes[other] * off, 0.0) for other, values in null.items()} | dict(exact)


def _estimate(metric: Metric, value: float, draws: Array, null: Array | None, floor: float | None) -> Estimate:
    low, high = metric.interval(value, draws, null)
    if metric.squared:
        value, low, high = (float(root(np.array(x))) for x in (value, low, high))
    if metric.biased:
        high = max(min(high, 1.0), value)
    return Estimate(value, low, high, floor)


def _table(measures: Measures) -> list[Bin]:
    scheme = measures.scheme
    counts = np.diff(scheme.cuts)
    hits, confidences = (
        np.array([values[a:b].sum() for a, b in zip(scheme.cuts, scheme.cuts[1:], strict=False)])
        for values in (measures.correct, measures.confidence)
    )
    low, high = intervals.clopper_pearson(hits, counts)
    rows = []
    for b, count in enumerate(counts.tolist()):
        edges = (float(scheme.edges[b]), float(scheme.edges[b + 1]))
        if not count:
            rows.append(Bin(*edges, 0, None, None, None, None))
            continue
        means = float(confidences[b]) / count, float(hits[b]) / count
        rows.append(Bin(*edges, count, *means, float(low[b]), float(high[b])))
    return rows
