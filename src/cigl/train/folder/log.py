"""What a run logs: rows of steps.csv and metrics.csv, and the same numbers to the trackers that were asked for."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cigl.common.errors import CiglWarning
from cigl.common.text import one_line
from cigl.integrations.trackers import Tracker, check_trackers, names_of, open_tracker

if TYPE_CHECKING:
    from cigl.calibrate import Report
    from cigl.train.folder.run_folder import RunFolder
    from cigl.train.trainer import Trainer

STATE = "trackers.json"
EVERY = 50  # steps


class Trackers:
    """All trackers of a run. One that fails is reported and left out: training goes on.

    A resumed run trains some steps again. Their numbers are the same, so that those up to the last step that was
    logged before are not logged twice.
    """

    def __init__(self) -> None:
        self._opened: dict[str, Tracker] = {}
        self._state: dict[str, dict[str, Any]] = {}
        self._write: Callable[[], None] = lambda: None

    def open(self, folder: RunFolder, names: tuple[str, ...] | None, config: Mapping[str, Any]) -> None:
        """``names`` are None for those that the run had before, or those of $CIGL_LOG for a new one."""
        path = folder.path / STATE
        before: dict[str, Any] = dict(folder.read_json(STATE)) if path.is_file() else {}
        if names is None:
            names = tuple(before) if folder.read_steps() or before else names_of(os.environ.get("CIGL_LOG", ""))
        check_trackers(names)
        last = max((int(row["step"]) for row in folder.read_steps()), default=0)
        for name in names:
            own = before.get(name, {})
            own["logged"] = max(own.get("logged", 0), last) if own else 0
            state = own.get("state", {})
            self._opened[name] = open_tracker(name, folder.path, config, state)
            before[name] = self._state[name] = own | {"state": state, "where": self._opened[name].where}
        self._write = lambda: folder.write_json(STATE, before)
        if names:
            self._write()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for name in list(self._opened):
            if step > self._state[name]["logged"]:
                self._try(name, lambda tracker: tracker.scalars(finite, step))

    def report(self, reports: Mapping[str, Report], step: int, folder: Path) -> None:
        """The reports' numbers, tables and reliability diagrams, once for each run."""
        todo = [name for name in self._opened if not self._state[name].get("reported")]
        if not todo:
            return
        values: dict[str, float] = {}
        files: dict[str, Path] = {}
        for title, each in reports.items():
            group = "test" + title.removeprefix("report").replace("-", "_")
            values |= {f"{group}/{name}": part["value"] for name, part in each.to_dict()["metrics"].items()}
            diagram, table = folder / f"{title}.png", folder / f"{title}.txt"
            each.reliability_diagram(diagram)
            table.write_text(f"{each}\n", encoding="utf-8")
            files |= {f"{group}/reliability": diagram, f"{group}/report": table}
        for name in todo:
            self._try(name, lambda tracker: tracker.report(values, step, files))
            self._state[name]["reported"] = True
        self._write()

    def close(self, finished: bool) -> None:
        for name in list(self._opened):
            self._try(name, lambda tracker: tracker.close(finished))

    def _try(self, name: str, call: Callable[[Tracker], None]) -> None:
        try:
            call(self._opened[name])
        except Exception as error:  # of other people's libraries: a run of days must not end with them
            tracker = self._opened.pop(name)
            with suppress(Exception):
                tracker.close(False)
            warnings.warn(
                f"{name} failed ({one_line(error)}): the run continues without it; metrics.csv has its numbers.",
                CiglWarning,
                stacklevel=3,
            )


@contextmanager
def trackers_of(folder: RunFolder, names: tuple[str, ...] | None, config: Mapping[str, Any]) -> Iterator[Trackers]:
    """Closed as finished, or as stopped if an error or a signal comes in between."""
    trackers, finished = Trackers(), False
    try:
        trackers.open(folder, names, config)
        yield trackers
        finished = True
    finally:
        trackers.close(finished)


class Log:
    """The numbers of every few steps, as means over them, and of every epoch."""

    def __init__(self, trainer: Trainer, folder: RunFolder, trackers: Trackers, every: int):
        self._trainer, self._folder, self._trackers, self._every = trainer, folder, trackers, every
        self._rest: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._before = [*self._trainer.sums, self._trainer.seconds]

    def step(self) -> None:
        """After each step; the last of an epoch is logged together with the epoch."""
        trainer = self._trainer
        ends = trainer.batch == trainer.steps_per_epoch
        if not ends and trainer.step % self._every:
            return
        loss, right, seen, seconds = (
            now - then for now, then in zip([*trainer.sums, trainer.seconds], self._before, strict=True)
        )
        self._begin()
        row = {"step": trainer.step, "epoch": trainer.epoch + 1, "loss": loss / seen, "accuracy": right / seen}
        row |= {"lr": trainer.lr, "images_per_second": seen / seconds if seconds > 0 else 0.0}
        self._folder.add_steps(row)
        self._rest = {f"train/{name}": value for name, value in row.items() if name not in ("step", "epoch")}
        if not ends:
            self._trackers.scalars(self._rest, trainer.step)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """After each epoch, with the row of its metrics."""
        values = {f"epoch/{name}": value for name, value in row.items() if name not in ("step", "epoch")}
        self._trackers.scalars({"epoch": row["epoch"]} | values | self._rest, self._trainer.step)
        self._rest = {}
        self._begin()
