"""A run's folder: its configuration, metrics, checkpoints and result, safe against kills and second writers.

config.yaml              what the run is; reproduces it with `cigl train --config`
versions.json            what it was started on
data.json                its classes, how many examples, and what becomes of an image before the network sees it
metrics.jsonl, .csv      a line per epoch; steps.csv: a line per 50 steps
trackers.json            the trackers of --log, and which of their runs this is
checkpoints/             the newest two, N.safetensors after N steps; when finished, the last one if it is of use
model.safetensors        the finished model; class names, preprocessing and temperature in its metadata
report.json, -*.npz      its calibration on the test data; report-temperature.json with the temperature
confusion.csv, .svg      what each class of the test data was taken for
result.json              written last: a run that has it is finished
lock                     held by the process that trains

Of several ranks, rank 0 reads and writes, and the others do as rank 0 found it: all call each method at the same
moment, and go the same way afterwards. Only what reads or writes checkpoints waits for torch.
"""

from __future__ import annotations

import functools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.extras import from_extra
from cigl.common.files import LEFTOVERS, is_locked, locked, write
from cigl.train.config import Config, resolve
from cigl.train.folder import csv_files
from cigl.train.folder.log import Trackers, trackers_of

if TYPE_CHECKING:
    from cigl.train.ranks.group import Ranks

KEEP = 2
PATIENCE = 10.0  # seconds in which a network's file system shows a new file to the other nodes
Given = ParamSpec("Given")


class Busy(CiglError):
    """Another process has the run."""


def _by_rank_0(method: Callable[Concatenate[RunFolder, Given], None]) -> Callable[Concatenate[RunFolder, Given], None]:
    @functools.wraps(method)
    def write(folder: RunFolder, /, *arguments: Given.args, **more: Given.kwargs) -> None:
        if folder.is_writer:
            method(folder, *arguments, **more)

    return write


class RunFolder:
    """Paths and files of one run; ``ranks`` are those that train it, if there are several."""

    def __init__(self, path: Path | str, ranks: Ranks | None = None):
        self.path = Path(path)
        self._ranks = ranks if ranks is not None and ranks.size > 1 else None
        self.is_writer = self._ranks is None or self._ranks.is_main  # by this process
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self._metrics_csv, self._steps_csv = self.path / "metrics.csv", self.path / "steps.csv"

    @property
    def is_started(self) -> bool:
        return self._has("config.yaml")

    @property
    def is_finished(self) -> bool:
        return self._has("result.json")

    def _has(self, name: str) -> bool:
        return bool(self._from_main((self.path / name).is_file()))

    def _from_main(self, value: Any) -> Any:
        return value if self._ranks is None else self._ranks.from_main(value)

    @property
    def is_locked(self) -> bool:
        """Whether a process is training here now."""
        return is_locked(self.path / "lock")

    @contextmanager
    def made(self) -> Iterator[None]:
        """There for the block, so that a place that can't be written to is known first; gone if it stays empty."""
        new = [each for each in (self.path, *self.path.parents) if not each.exists()] if self.is_writer else []
        try:
            for each in reversed(new):
                try:
                    each.mkdir(exist_ok=True)
                except OSError as error:
                    reason = error.strerror or error
                    raise CiglError(
                        f"{self.path} can't be made ({reason}): choose another place with --out."
                    ) from error
            yield
        finally:
            for each in new:
                with suppress(OSError):  # it holds the run
                    each.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time (or one group of ranks), or Busy."""
        with ExitStack() as stack:
            busy = None
            if self.is_writer:
                try:
                    stack.enter_context(locked(self.path / "lock", wait=False))
                except BlockingIOError:
                    busy = f"another process is training in {self.path}: wait for it, or choose another --out."
            if busy := self._from_main(busy):
                raise Busy(busy)
            if self.is_writer:
                self.checkpoints.mkdir(exist_ok=True)
                for leftover in (*self.path.glob(LEFTOVERS), *self.checkpoints.glob(LEFTOVERS)):
                    leftover.unlink(missing_ok=True)  # of a process that was killed while writing
            if self._ranks is not None:
                self._check_visible(self._ranks)
            yield

    def _check_visible(self, ranks: Ranks) -> None:
        """Whether all ranks see a file that rank 0 makes."""
        seen = self.path / ranks.from_main(f".seen.{time.time_ns()}.tmp")  # a leftover, if this process is killed
        try:
            if self.is_writer:
                seen.touch()
            end = time.monotonic() + PATIENCE
            while not (found := seen.is_file()) and time.monotonic() < end:
                time.sleep(0.1)
            blind = [rank for rank, each in enumerate(ranks.gather(found)) if not each]
        finally:
            if self.is_writer:
                seen.unlink(missing_ok=True)
        if blind:
            raise CiglError(
                f"rank {blind[0]} can't see {self.path}, which rank 0 writes to: give a folder on a file system that "
                "all nodes share."
            )

    # Configuration and results

    @_by_rank_0
    def write_config(self, config: Config) -> None:
        with from_extra("cli", "runs"):
            import yaml

        keys = config.plain()
        if config.train_size is not None:
            keys["subset"] = config.subset  # said where people read it, also where it is the one of version 0.1.0
        text = yaml.safe_dump(keys, sort_keys=False)
        write(self.path / "config.yaml", text.encode())

    def read_config(self) -> Config:
        if not self.is_started:
            raise CiglError(f"{self.path} is not a run folder: it has no config.yaml.")
        return resolve(file=self.path / "config.yaml")

    def read_finished(self) -> Config:
        """The configuration of a run that must be finished."""
        config = self.read_config()
        if not self.is_finished:
            raise CiglError(
                f"the run in {self.path} is not finished: resume it with `cigl train --resume {self.path}`."
            )
        return config

    @_by_rank_0
    def write_json(self, name: str, content: Any) -> None:
        write(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    @_by_rank_0
    def write_tensors(self, name: str, state: Any, entries: Mapping[str, Any] | None = None) -> None:
        from cigl.common import tensors

        tensors.save(self.path / name, state, entries)

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise CiglError(f"{self.path / name} can't be read: {error}.") from error

    # Metrics

    @_by_rank_0
    def add_metrics(self, row: dict[str, Any]) -> None:
        with csv_files.appending(self.metrics) as file:
            file.write(json.dumps(row) + "\n")
        csv_files.append(self._metrics_csv, row)

    @_by_rank_0
    def add_steps(self, row: dict[str, Any]) -> None:
        """What a few steps have in common, for steps.csv alone."""
        csv_files.append(self._steps_csv, row)

    def read_steps(self) -> list[dict[str, str]]:
        return csv_files.read(self._steps_csv)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines (a kill may have torn the last one)."""
        rows = []
        for line in self.metrics.read_bytes().splitlines() if self.metrics.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict):
                break
            rows.append(row)
        return rows

    def trackers(self, names: tuple[str, ...] | None, config: Config) -> AbstractContextManager[Trackers]:
        """Of these names (None: those that the run had before), open until the run stops or is finished."""
        return trackers_of(self, names, config.plain()) if self.is_writer else nullcontext(Trackers())

    @_by_rank_0
    def cut_metrics(self, epochs: int, steps: int) -> None:
        """Back to what a checkpoint knows of: the first ``epochs`` lines, and those of the first ``steps``."""
        rows = [row for row in self.read_metrics() if row["epoch"] <= epochs]
        write(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())
        csv_files.replace(self._metrics_csv, rows)
        csv_files.replace(self._steps_csv, [row for row in self.read_steps() if int(row["step"]) <= steps])

    def copy_metrics(self, other: RunFolder) -> None:
        """Of a run that has trained the same."""
        for path in (other.metrics, other._metrics_csv, other._steps_csv):
            if path.is_file():
                write(self.path / path.name, path.read_bytes())

    # Checkpoints

    @_by_rank_0
    def save_checkpoint(self, step: int, state: Any) -> None:
        from cigl.common import tensors

        with csv_files.appending(self.metrics) as file:
            os.fsync(file.fileno())  # the checkpoint counts on them
        tensors.save(self.checkpoints / f"{step}.safetensors", state)
        self.drop_checkpoints(KEEP)

    @_by_rank_0
    def drop_checkpoints(self, keep: int) -> None:
        """All but the newest ``keep``."""
        for old in self._newest_first()[keep:]:
            old.unlink(missing_ok=True)

    def load_checkpoint(self) -> Any | None:
        """The newest one that is whole, or None; a damaged one is reported."""
        step, state = self._newest_whole() if self.is_writer else (None, None)
        step = self._from_main(step)
        return state if self.is_writer or step is None else self.checkpoint(step)

    def _newest_whole(self) -> tuple[int | None, Any]:
        found = self._newest_first()
        for number, path in enumerate(found, 1):
            try:
                return int(path.stem), self.checkpoint(int(path.stem))
            except CiglError as error:
                last = "No other is left: the run starts again."
                then = last if number == len(found) else "The checkpoint before it is used instead."
                warnings.warn(f"{error} {then}", CiglWarning, stacklevel=3)
                path.unlink(missing_ok=True)
        return None, None

    def has_checkpoint(self, step: int) -> bool:
        return (self.checkpoints / f"{step}.safetensors").is_file()

    def checkpoint(self, step: int) -> Any:
        """The one after so many steps; nothing is repaired here."""
        from cigl.common import tensors

        return tensors.load(self.checkpoints / f"{step}.safetensors")

    def _newest_first(self) -> list[Path]:
        found = [path for path in self.checkpoints.glob("*.safetensors") if path.stem.isdigit()]
        return sorted(found, key=lambda path: int(path.stem), reverse=True)
