"""What tables, figures and captions have in common: how numbers are shown, and what a cell of the grid tells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cigl.calibrate.bins import Array
from cigl.study.evidence import Evidence
from cigl.study.statistics import OverSeeds, difference
from cigl.train.config import Config


class Metric(NamedTuple):
    """How a number is shown, and what the paper calls it."""

    title: str
    scale: float
    decimals: int
    in_paper: str = ""


SHOWN = {
    "accuracy": Metric("Accuracy (%)", 100, 2, "accuracy"),
    "ece_15": Metric("ECE", 1, 4, "ece"),
    "nll": Metric("NLL", 1, 4),
    "brier": Metric("Brier score", 1, 4),
    "gap": Metric("Confidence − accuracy", 1, 4),
}


def percent(sparsity: float) -> str:
    """
    >>> percent(0.999), percent(0.8)
    ('99.9 %', '80 %')
    """
    return f"{100 * sparsity:.6g} %"


def signed(value: float, decimals: int) -> str:
    """
    >>> signed(-0.5, 2), signed(0.0, 1)
    ('−0.50', '+0.0')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def config_of(evidence: Evidence, setting: str) -> Config:
    """Of one of its runs: the dataset and the network are the same in all."""
    return next(run.cell.config for run in evidence.runs if run.cell.setting == setting)


def setting_title(evidence: Evidence, setting: str) -> str:
    config = config_of(evidence, setting)
    return f"{setting} ({config.dataset}, {config.model})"


def change(
    evidence: Evidence, setting: str, method: str, sparsity: float, metric: str, scaled: bool = False
) -> OverSeeds | None:
    """The paired difference against the study's reference at the same sparsity."""
    reference = evidence.numbers(setting, evidence.study.reference, sparsity, metric, scaled)
    return difference(evidence.numbers(setting, method, sparsity, metric, scaled), reference)


def relative(evidence: Evidence, setting: str, method: str, sparsity: float, scaled: bool = False) -> float | None:
    """By which share the ECE differs from the reference's, over the seeds that both have."""
    ours = evidence.numbers(setting, method, sparsity, "ece_15", scaled)
    theirs = evidence.numbers(setting, evidence.study.reference, sparsity, "ece_15", scaled)
    seeds = [seed for seed in ours if seed in theirs]
    base = float(np.mean([theirs[seed].value for seed in seeds])) if seeds else 0.0
    return float(np.mean([ours[seed].value for seed in seeds])) / base - 1 if base else None


class Spread(NamedTuple):
    """A mean over seeds without draws of test points."""

    value: float
    seed_sd: float | None

    @classmethod
    def of(cls, values: Array) -> Spread:
        return cls(float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None)


def masked_accuracies(
    evidence: Evidence, setting: str, method: str, sparsity: float
) -> tuple[Spread, Spread, Spread] | None:
    """Over seeds: the accuracy of W, of Z*W (mean over its draws), and the drop from one to the other."""
    found = [run.masks for run in evidence.group(setting, method, sparsity).values() if run.masks]
    if not found:
        return None
    whole = np.array([masks["W"] for masks in found], dtype=float)
    masked = np.array([np.mean(masks["Z*W"]) for masks in found], dtype=float)
    return Spread.of(whole), Spread.of(masked), Spread.of(whole - masked)
