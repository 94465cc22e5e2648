"""What the finished runs of a study have measured, read from their folders."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.calibrate.reports import store
from cigl.calibrate.reports.classification import RESAMPLES
from cigl.common.errors import CiglError
from cigl.report.evidence.metrics import ACCURACY, ECE, measured
from cigl.study.grid import Cell, Study
from cigl.study.store import Finished, StudyFolder
from cigl.train.config import Config


@dataclass(frozen=True, eq=False)
class Measured:
    """One number of one run with its bootstrap draws. Runs on the same test points have the same resamples."""

    value: float
    draws: Array
    floor: float = 0.0  # what noise alone would show; 0 for all but calibration errors


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: ``numbers[False]`` as it predicts, ``numbers[True]`` after temperature scaling."""

    cell: Cell
    path: Path
    result: dict[str, Any]
    masks: dict[str, Any] | None
    numbers: dict[bool, dict[str, Measured]]
    report: str  # the file that numbers[False] come from
    tested_on: str  # a hash of the test labels

    @classmethod
    def read(cls, finished: Finished) -> Run:
        """A pilot's temperature is part of the method: such a run predicts with it."""
        result = finished.result
        _check(result, finished.masks)
        names = {False: "report", True: "report-temperature"}
        if result["temperature"] is None:
            del names[True]
        elif finished.cell.config.temperature == "pilot":
            names[False] = names[True]
        read = {name: _measured(finished.path / f"{name}.json") for name in set(names.values())}
        if len({tested_on for _, tested_on in read.values()}) > 1:
            raise CiglError(f"the reports in {finished.path} are of different test data.")
        own = names[False]
        numbers = {scaled: read[name][0] for scaled, name in names.items()}
        return cls(finished.cell, finished.path, result, finished.masks, numbers, f"{own}.json", read[own][1])


def _check(result: Mapping[str, Any], masks: Mapping[str, Any] | None) -> None:
    """Whether there is what else the page shows of a run; if not, one of ``store.DAMAGE`` is raised."""
    shown = [result["seconds"]]
    shown += [] if result["temperature"] is None else [result["temperature"]]
    shown += [] if masks is None else [masks["W"], fmean(masks["Z*W"])]
    if not isinstance(result["versions"], dict) or not all(map(math.isfinite, shown)):
        raise ValueError


def _measured(path: Path) -> tuple[dict[str, Measured], str]:
    """The numbers of one report, and a hash of its test labels. A run older than a metric is read without it."""
    plain, beside = store.locate(path)
    try:
        names = [name for name in measured() if name in (ECE, ACCURACY) or name in plain["metrics"]]
        arrays = store.load(beside, ["labels", *(f"draws/{name}" for name in names)])
        if arrays["labels"].shape != (plain["n"],):
            raise ValueError
        numbers = {}
        for name in names:
            draws, parts = arrays[f"draws/{name}"], plain["metrics"][name]
            one = Measured(float(parts["value"]), draws, float(parts.get("floor", 0.0)))
            if draws.shape != (RESAMPLES,) or draws.dtype.kind != "f" or not np.isfinite([one.value, *draws]).all():
                raise ValueError
            numbers[name] = one
    except CiglError:
        raise
    except store.DAMAGE:
        raise store.damaged(path) from None
    return numbers, hashlib.sha256(arrays["labels"].tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a report is made of. Every cell of the study is in one of the lists, or its folder in ``damaged``."""

    study: Study
    folder: Path
    runs: list[Run]
    failed: dict[Cell, dict[str, Any]]
    damaged: dict[Path, str]
    missing: list[Cell]

    @classmethod
    def read(cls, path: Path | str) -> Evidence:
        """Damaged runs are left out, and named; a study without a single finished run is refused."""
        folder = StudyFolder(path)
        study, found = folder.read(), folder.find()
        runs, damaged = [], dict(found.damaged)
        for finished in found.finished:
            try:
                runs.append(Run.read(finished))
            except (CiglError, *store.DAMAGE) as error:
                named = isinstance(error, CiglError)
                damaged[finished.path] = str(error) if named else "its result.json or masks.json is incomplete."
        for run in _tested_elsewhere(runs):
            damaged[run.path] = "it was tested on other data than the other runs of its setting."
        runs = [run for run in runs if run.path not in damaged]
        if not runs:
            more = f", {len(damaged)} damaged" if damaged else ""
            raise CiglError(
                f"{path} has no finished run yet ({len(found.missing)} to come, {len(found.failed)} failed{more}): "
                f"`cigl study status {path}` shows its progress."
            )
        return cls(study, Path(path), runs, found.failed, damaged, found.missing)

    @property
    def settings(self) -> list[str]:
        """Those with a finished run, in the study's order."""
        return [name for name in self.study.settings if any(run.cell.setting == name for run in self.runs)]

    def config(self, setting: str, method: str | None = None) -> Config:
        """Of one of its runs: the dataset and the network are the same in all, and the rest in all of a method."""
        cells = (run.cell for run in self.runs)
        return next(c.config for c in cells if c.setting == setting and method in (c.method, None))

    def title(self, setting: str) -> str:
        config = self.config(setting)
        return f"{setting} ({config.dataset}, {config.model})"

    def methods(self, setting: str) -> list[str]:
        return [name for name in self.study.methods if self.sparsities(setting, [name])]

    def sparsities(self, setting: str, methods: Iterable[str]) -> list[float]:
        """Those at which one of the methods has a finished run."""
        wanted = {(setting, method) for method in methods}
        return sorted({sparsity for *place, sparsity in self._groups if tuple(place) in wanted})

    def group(self, setting: str, method: str, sparsity: float) -> dict[int, Run]:
        """The runs of one cell of a table, by seed."""
        return self._groups.get((setting, method, sparsity), {})

    @cached_property
    def _groups(self) -> dict[tuple[str, str, float], dict[int, Run]]:
        groups: dict[tuple[str, str, float], dict[int, Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.cell.seed):
            groups.setdefault((run.cell.setting, run.cell.method, run.cell.sparsity), {})[run.cell.seed] = run
        return groups

    def numbers(self, setting: str, method: str, sparsity: float, metric: str, scaled: bool) -> dict[int, Measured]:
        """One number of those runs, by seed."""
        runs = self.group(setting, method, sparsity)
        found = {seed: run.numbers.get(scaled, {}).get(metric) for seed, run in runs.items()}
        return {seed: one for seed, one in found.items() if one is not None}


def _tested_elsewhere(runs: list[Run]) -> list[Run]:
    """Differences are paired by test point: in each setting the test data that most runs have counts."""
    counts = Counter((run.cell.setting, run.tested_on) for run in runs)
    usual: dict[str, str] = {}
    for (setting, tested_on), _ in counts.most_common():
        usual.setdefault(setting, tested_on)
    return [run for run in runs if run.tested_on != usual[run.cell.setting]]
