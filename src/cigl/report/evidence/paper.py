"""The paper's own numbers, to stand beside runs of the paper's own settings and methods, and beside no others."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from cigl.study.catalogue import METHODS
from cigl.train.config import Config, resolve

# The paper's methods under our names.
_NAMES = {"rigl+w-dp": "rigl-wdp", "rigl+mc-dp": "rigl-mcdp", "sparse-training": "rigl"}
_METRICS = {"accuracy": 0.01, "ece": 1.0, "ece_change": 1.0}  # and its units in ours
# Where it prints them; of two tables with the same number, the first counts.
TABLES = {
    "ece": ("dropout_ece", "set_ece"),
    "accuracy": ("acc_main", "dropout_acc", "intro"),
    "ece_change": ("wma_delta", "sup_tickets_delta"),
}
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_MODELS = {"resnet50": "ResNet-50", "wrn-22-2": "WRN-22-2"}

# What does not add up in the paper, or is not said there, by table, dataset and method.
SLIPS = {
    ("sup_tickets_delta", "cifar100", "cigl"): (
        "The paper's CigL row for CIFAR-100 repeats its differences of WRN-22-2 on CIFAR-10 (a slip in its Sup-tickets "
        "table)."
    ),
    ("set_ece", "cifar10", "set"): (
        "The paper labels this row CIFAR-100; by its values and its place it is CIFAR-10 (a slip in its SET table)."
    ),
    ("intro", "cifar100", "rigl"): (
        "The paper gives this accuracy in its text, for “sparse training”; RigL is our guess."
    ),
}


@dataclass(frozen=True)
class Setting:
    """A dataset and a network of the paper."""

    dataset: str
    model: str

    def __str__(self) -> str:
        return f"{_DATASETS[self.dataset]}, {_MODELS[self.model]}"


@dataclass(frozen=True)
class Printed:
    """One number of the paper, in our units: accuracy as a share."""

    table: str
    setting: Setting
    method: str
    sparsity: float
    metric: str
    mean: float
    std: float | None

    @property
    def slip(self) -> str | None:
        return SLIPS.get((self.table, self.setting.dataset, self.method))


@cache
def printed() -> tuple[Printed, ...]:
    """All numbers.

    >>> len(printed())
    114
    """
    text = files("cigl.report").joinpath("assets/results.csv").read_text(encoding="utf-8")
    return tuple(_printed(row) for row in csv.DictReader(text.splitlines()))


def _printed(row: dict[str, str]) -> Printed:
    scale = _METRICS[row["metric"]]
    return Printed(
        row["table"],
        Setting(row["dataset"], row["model"]),
        _NAMES.get(row["method"], row["method"]),
        round(float(row["sparsity_pct"]) / 100, 6),
        row["metric"],
        float(row["mean"]) * scale,
        float(row["std"]) * scale if row["std"] else None,
    )


def methods(table: str) -> set[str]:
    """Of one of the paper's tables, under our names."""
    return {one.method for one in printed() if one.table == table}


# A tenth of the training data is held out in our studies, and where a run is done is its own affair.
_NOT_IN_PAPER = ("seed", "sparsity", "device", "workers", "validation", "temperature")


def place(config: Config) -> tuple[Setting, str] | None:
    """The paper's setting and method, under our name, that a run is one of; None for all other runs.

    >>> config = resolve({"method": "rigl", "seed": 3, "validation": 0.1}, preset="cifar10-wrn-22-2")
    >>> setting, method = place(config)
    >>> str(setting), method
    ('CIFAR-10, WRN-22-2', 'rigl')
    >>> place(config.changed(epochs=10)) is None
    True
    """
    if config.temperature == "pilot":  # which is part of the method
        return None
    return _places().get(config.digest(without=_NOT_IN_PAPER))


@cache
def _places() -> dict[str, tuple[Setting, str]]:
    """The settings are those of the presets of their names."""
    found = {(one.setting, one.method) for one in printed()}
    configs = {at: resolve(METHODS[at[1]][1], preset=f"{at[0].dataset}-{at[0].model}") for at in found}
    return {config.digest(without=_NOT_IN_PAPER): at for at, config in configs.items()}


def find(metric: str, at: tuple[Setting, str] | None, sparsity: float, tables: Sequence[str]) -> Printed | None:
    """The number that the first of these tables of the paper prints there.

    >>> find("ece", (Setting("cifar10", "resnet50"), "cigl"), 0.95, TABLES["ece"]).mean
    0.0385
    """
    if at is None:
        return None
    found = {
        one.table: one
        for one in printed()
        if (one.metric, one.setting, one.method) == (metric, *at) and abs(one.sparsity - sparsity) < 1e-6
    }
    return next((found[table] for table in tables if table in found), None)
