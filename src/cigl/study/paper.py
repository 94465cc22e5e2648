"""The paper's own numbers, to stand beside ours. They are of other settings than the small ones: each is labelled."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from cigl.train.config import Config

# The paper's methods under our names.
_NAMES = {"rigl+w-dp": "rigl-wdp", "rigl+mc-dp": "rigl-mcdp", "sparse-training": "rigl"}
_METRICS = {"accuracy": 0.01, "ece": 1.0, "ece_change": 1.0}  # and its units in ours
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
    (
        "intro",
        "cifar100",
        "rigl",
    ): "The paper gives this accuracy in its text, for “sparse training”; RigL is our guess.",
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
    text = files("cigl.study").joinpath("assets/results.csv").read_text(encoding="utf-8")
    return tuple(_printed(row) for row in csv.DictReader(text.splitlines()))


def _printed(row: dict[str, str]) -> Printed:
    scale = _METRICS[row["metric"]]
    return Printed(
        row["table"], Setting(row["dataset"], row["model"]), _NAMES.get(row["method"], row["method"]),
        round(float(row["sparsity_pct"]) / 100, 6), row["metric"], float(row["mean"]) * scale,
        float(row["std"]) * scale if row["std"] else None,
    )  # fmt: skip


def nearest(config: Config) -> Setting:
    """The paper's setting that a run is to be seen beside: its own, or the most similar one.

    >>> str(nearest(Config(dataset="fashion-mnist", model="mlp")))
    'CIFAR-10, ResNet-50'
    """
    if config.dataset == "cifar100":
        return Setting("cifar100", "resnet50")
    return Setting("cifar10", "wrn-22-2" if config.model.startswith("wrn") else "resnet50")


def is_same(config: Config) -> bool:
    return Setting(config.dataset, config.model) == nearest(config)


def find(metric: str, setting: Setting, method: str, sparsity: float, tables: Sequence[str]) -> Printed | None:
    """The number that one of these tables of the paper prints.

    >>> find("ece", Setting("cifar10", "resnet50"), "cigl", 0.95, ["dropout_ece"]).mean
    0.0385
    """
    for one in printed():
        at = (one.metric, one.setting, one.method) == (metric, setting, method) and abs(one.sparsity - sparsity) < 1e-6
        if at and one.table in tables:
            return one
    return None
