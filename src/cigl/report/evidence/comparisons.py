"""One cell of the grid against the reference, and under random masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import ECE
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
