"""The folder of a run that several ranks train: rank 0 reads and writes it, and the others do as rank 0 found it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cigl.common.errors import CiglError
from cigl.train.config import Config
from cigl.train.folder.log import Trackers
from cigl.train.folder.run_folder import Busy, RunFolder
from cigl.train.ranks.group import Ranks

PATIENCE = 10.0  # seconds in which a network's file system shows a new file to the other nodes


def folder_of(path: Path | str, ranks: Ranks) -> RunFolder:
    """A run's folder as this rank has it."""
    if ranks.size == 1:
        return RunFolder(path)
    return _MainFolder(path, ranks) if ranks.is_main else _OtherFolder(path, ranks)


class _SharedFolder(RunFolder):
    """All ranks call each method at the same moment, and go the same way afterwards."""

    def __init__(self, path: Path | str, ranks: Ranks):
        super().__init__(path)
        self._ranks = ranks

    @property
    def is_started(self) -> bool:
        return bool(self._ranks.from_main(super().is_started))

    @property
    def is_finished(self) -> bool:
        return bool(self._ranks.from_main(super().is_finished))

    def _check_visible(self, name: str) -> None:
        """Rank 0 has just made this file."""
        end = time.monotonic() + PATIENCE
        while not (seen := (self.path / name).is_file()) and time.monotonic() < end:
            time.sleep(0.1)
        blind = [rank for rank, each in enumerate(self._ranks.gather(seen)) if not each]
        if blind:
            raise CiglError(
                f"rank {blind[0]} can't see {self.path}, which rank 0 writes to: give a folder on a file system that "
                "all nodes share."
            )


class _MainFolder(_SharedFolder):
    """As rank 0 has it."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            busy = None
            try:
                stack.enter_context(super().locked())
            except Busy as error:
                busy = error
            self._ranks.from_main(None if busy is None else str(busy))
            if busy is not None:
                raise busy
            seen = self.path / f".seen.{time.time_ns()}.tmp"  # a leftover, if this process is killed
            seen.touch()
            try:
                self._ranks.from_main(seen.name)
                self._check_visible(seen.name)
            finally:
                seen.unlink(missing_ok=True)
            yield

    def load_checkpoint(self) -> Any | None:
        state = super().load_checkpoint()
        newest = self._newest_first()
        self._ranks.from_main(int(newest[0].stem) if newest else None)
        return state


class _OtherFolder(_SharedFolder):
    """As the other ranks have it: nothing is written."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        busy = self._ranks.from_main(None)
        if busy is not None:
            raise Busy(busy)
        self._check_visible(self._ranks.from_main(None))
        yield

    def load_checkpoint(self) -> Any | None:
        step = self._ranks.from_main(None)
        return None if step is None else self.checkpoint(step)

    def write_config(self, config: Config) -> None:
        pass

    def write_json(self, name: str, content: Any) -> None:
        pass

    def write_tensors(self, name: str, state: Any, entries: Mapping[str, Any] | None = None) -> None:
        pass

    def add_metrics(self, row: dict[str, Any]) -> None:
        pass

    def add_steps(self, row: dict[str, Any]) -> None:
        pass

    def trackers(self, names: tuple[str, ...] | None, config: Config) -> AbstractContextManager[Trackers]:
        return nullcontext(Trackers())

    def cut_metrics(self, epochs: int, steps: int) -> None:
        pass

    def save_checkpoint(self, step: int, state: Any) -> None:
        pass

    def drop_checkpoints(self, keep: int) -> None:
        pass
