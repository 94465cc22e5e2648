"""One cell of the grid against the reference, and under random masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import ACCURACY, ECE, HEADLINE, lookup, tabulated
from cigl.report.evidence.statistics import OverSeeds, difference


def change(
    evidence: Evidence, setting: str, method: str, sparsity: float, metric: str, scaled: bool = False
) -> OverSeeds | None:
    """The paired difference against the study's reference at the same sparsity."""
    reference = evidence.numbers(setting, evidence.study.reference, sparsity, metric, scaled)
    return difference(evidence.numbers(setting, method, sparsity, metric, scaled), reference)


def relative(
    evidence: Evidence, setting: str, method: str, sparsity: float, metric: str = ECE, scaled: bool = False
) -> float | None:
    """By which share the metric differs from the reference's, over the seeds that both have."""
    ours = evidence.numbers(setting, method, sparsity, metric, scaled)
    theirs = evidence.numbers(setting, evidence.study.reference, sparsity, metric, scaled)
    seeds = [seed for seed in ours if seed in theirs]
    base = float(np.mean([theirs[seed].value for seed in seeds])) if seeds else 0.0
    return float(np.mean([ours[seed].value for seed in seeds])) / base - 1 if base else None


# By the sign of the significant changes of ECE and accuracy; 0 where a change is not significant.
_VERDICTS = {
    (-1, 1): "better calibrated and more accurate{than}",
    (-1, 0): "better calibrated{than}, with no significant difference in accuracy",
    (-1, -1): "better calibrated but less accurate{than}",
    (0, 1): "more accurate{than}, with no significant difference in calibration",
    (0, 0): "not significantly different{from_} in calibration or accuracy",
    (0, -1): "less accurate{than}, with no significant difference in calibration",
    (1, 1): "more accurate but worse calibrated{than}",
    (1, 0): "worse calibrated{than}, with no significant difference in accuracy",
    (1, -1): "worse calibrated and less accurate{than}",
}


@dataclass(frozen=True)
class Contrast:
    """A method against the reference at one sparsity: paired differences by metric, and by which share the ECE differs
    (None of an ECE of 0)."""

    sparsity: float
    changes: Mapping[str, OverSeeds]
    share: float | None

    @property
    def scores(self) -> dict[str, OverSeeds]:
        """The others than ECE and accuracy: NLL and Brier score."""
        return {name: one for name, one in self.changes.items() if name not in HEADLINE}

    @property
    def worse(self) -> tuple[str, ...]:
        """The titles of those scores that are significantly worse."""
        wrong = {"lower": 1, "higher": -1}
        return tuple(lookup(name).title for name, one in self.scores.items() if sign(one) == wrong[lookup(name).better])

    def verdict(self, reference: str = "") -> str:
        """In words; a lower ECE with a lower accuracy is never simply better."""
        than, from_ = (f" {word} {reference}" if reference else "" for word in ("than", "from"))
        return _VERDICTS[sign(self.changes[ECE]), sign(self.changes[ACCURACY])].format(than=than, from_=from_)


def sign(one: OverSeeds) -> int:
    """Of a difference whose interval excludes 0; else 0."""
    return (one.low > 0) - (one.high < 0)


def contrasts(evidence: Evidence, setting: str, method: str, scaled: bool = False) -> list[Contrast]:
    """At the sparsities that the reference has, too; none of the reference itself."""
    found = []
    for sparsity in evidence.sparsities(setting, [method]) if method != evidence.study.reference else ():
        cell = (evidence, setting, method, sparsity)
        differences = {name: change(*cell, name, scaled) for name in tabulated()}
        if changes := {name: one for name, one in differences.items() if one is not None}:
            found.append(Contrast(sparsity, changes, relative(*cell, ECE, scaled)))
    return found


class Spread(NamedTuple):
    """A mean over seeds without draws of test points."""

    value: float
    seed_sd: float | None
    seeds: dict[int, float]

    @classmethod
    def of(cls, seeds: Iterable[int], values: Array) -> Spread:
        sd = float(values.std(ddof=1)) if values.size > 1 else None
        return cls(float(values.mean()), sd, dict(zip(seeds, values.tolist(), strict=True)))


def masked_accuracies(
    evidence: Evidence, setting: str, method: str, sparsity: float
) -> tuple[Spread, Spread, Spread] | None:
    """Over seeds: the accuracy of W, of Z*W (mean over its draws), and the drop from one to the other."""
    runs = evidence.group(setting, method, sparsity)
    found = {seed: run.masks for seed, run in runs.items() if run.masks}
    if not found:
        return None
    whole = np.array([masks["W"] for masks in found.values()], dtype=float)
    masked = np.array([np.mean(masks["Z*W"]) for masks in found.values()], dtype=float)
    return Spread.of(found, whole), Spread.of(found, masked), Spread.of(found, whole - masked)
