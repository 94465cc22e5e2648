"""A study's folder: ``study.yaml``, and a folder per run, named by the hash of its configuration.

study.yaml                 the study as it is run, and where its runs are
workers.log                warnings and errors of the worker processes
runs/<digest>/             a run as `cigl train` leaves it (studies may share one folder of runs)
runs/<digest>/error.json   why the run failed, with its traceback
runs/<digest>/masks.json   accuracy of W and of Z*W, where the study draws masks
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cigl.common.errors import CiglError
from cigl.common.extras import from_extra
from cigl.common.files import locked, write
from cigl.study.grid import Cell, Study, cells
from cigl.train.config import read_keys
from cigl.train.folder.run_folder import RunFolder


@dataclass(frozen=True)
class Finished:
    """A run that is done: its place in the grid, its folder, and what ``result.json`` and ``masks.json`` hold."""

    cell: Cell
    path: Path
    result: dict[str, Any]
    masks: dict[str, Any] | None


@dataclass(frozen=True)
class Found:
    """All that a study's folder holds; every cell of the grid is in one of the lists."""

    finished: list[Finished]
    failed: dict[Cell, dict[str, Any]]  # with what error.json holds
    damaged: dict[Path, str]  # with what is wrong
    missing: list[Cell]  # not started, or running


class StudyFolder:
    """What the processes that work on a study, and its report, see of it."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.file = self.path / "study.yaml"
        self.log = self.path / "workers.log"
        self._runs: Path | None = None

    def create(self, study: Study, runs: Path | None = None) -> None:
        """Begin the study here, resume it, or add seeds to it; another study is refused."""
        with from_extra("cli", "studies"):
            import yaml

        study = _with_subset(study, "stratified")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CiglError(f"{self.path} can't be written to: {error.strerror}; choose another --out.") from error
        with locked(self.path / "lock"):
            if self.file.is_file():
                self._refuse_other(study, runs)
                there = self.read()
                study = study.with_seeds(tuple(dict.fromkeys(there.seeds + study.seeds)))
                if study == there:
                    return
                runs = self.runs
            where = {} if runs is None else {"runs": os.path.relpath(runs, self.path)}
            write(self.file, yaml.safe_dump(study.plain() | where, sort_keys=False).encode())
            self._runs = None

    def _refuse_other(self, study: Study, runs: Path | None) -> None:
        there = self.read()
        if _without_texts(there) != _without_texts(study):
            raise CiglError(
                f"{self.path} holds another study ({there.name!r}, or the same with other settings): choose "
                "another --out, or resume that one as it was started."
            )
        if runs is not None and runs.resolve() != self.runs.resolve():
            raise CiglError(f"the study in {self.path} has its runs in {self.runs}: leave --runs out.")

    def read(self) -> Study:
        if not self.file.is_file():
            raise CiglError(f"{self.path} holds no study: `cigl study run NAME --out {self.path}` begins one.")
        keys = read_keys(self.file)
        self._runs = self.path / str(keys.pop("runs", "runs"))
        return _with_subset(Study.of(keys), "first")

    @property
    def runs(self) -> Path:
        if self._runs is None:
            self.read()
        assert self._runs is not None
        return self._runs

    def folder(self, cell: Cell) -> RunFolder:
        return RunFolder(self.runs / cell.digest)

    def find(self) -> Found:
        """Look at every run of the grid; reads small files only."""
        study = self.read()
        found = Found([], {}, {}, [])
        for cell in cells(study):
            folder = self.folder(cell)
            try:
                has_masks = study.masks > 0 and (folder.path / "masks.json").is_file()  # of this study, not of another
                masks = folder.read_json("masks.json") if has_masks else None
                drawn = 0 if masks is None else len(masks["Z*W"])
                if folder.is_finished and drawn >= study.masks:
                    result = folder.read_json("result.json")
                    if result["config"] != cell.config.plain():
                        raise CiglError(f"{folder.path} holds the result of another configuration.")
                    found.finished.append(Finished(cell, folder.path, result, masks))
                elif (folder.path / "error.json").is_file():
                    found.failed[cell] = dict(folder.read_json("error.json"))
                else:
                    found.missing.append(cell)
            except CiglError as error:
                found.damaged[folder.path] = str(error)
            except (KeyError, TypeError, ValueError):
                found.damaged[folder.path] = f"{folder.path} has a file that is not as a run leaves it."
        return found


def _with_subset(study: Study, subset: str) -> Study:
    """With the key ``subset`` wherever ``train_size`` is without it: version 0.1.0 took the first examples."""

    def explicit(group: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        return {
            name: {**keys, "subset": subset} if keys.get("train_size") is not None and "subset" not in keys else keys
            for name, keys in group.items()
        }

    settings = explicit(study.settings)
    inherited = any("subset" in keys for keys in settings.values())
    methods = study.methods if inherited else explicit(study.methods)
    return dataclasses.replace(study, settings=settings, methods=methods)


def _without_texts(study: Study) -> dict[str, Any]:
    """What is run: seeds may be added to it, and what people read may change."""
    return {key: value for key, value in study.plain().items() if key not in ("seeds", "about", "labels")}


def record_failure(folder: RunFolder, message: str, details: str = "") -> None:
    """For whoever looks at the study later. The disk may be what failed, so that this may fail too."""
    with contextlib.suppress(OSError, CiglError):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_json("error.json", {"message": message, "traceback": details})
