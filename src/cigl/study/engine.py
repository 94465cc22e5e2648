"""Works through a study: hands runs to workers, counts what comes back, and continues whatever fails.

The engine holds no state that could be lost. What is done, running or failed is recorded in the run folders, and a run
is claimed by the lock on its folder; so any number of engines may work on one study, and each may be killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

from cigl.common.text import duration
from cigl.study.grid import Cell
from cigl.study.store import StudyFolder, record_failure
from cigl.train.folder.run_folder import RunFolder
from cigl.train.signals import listening

TICK = 0.25  # seconds between looks at signals and at the clock
BUSY = 2.0  # seconds before a run that another process has is tried again


class Order(TypedDict):
    """What a worker has to know of a run; survives JSON."""

    path: str
    config: dict[str, Any]
    masks: int


class Outcome(TypedDict):
    """How it ended."""

    state: Literal["done", "failed", "busy"]
    message: str
    seconds: float


class Workers(Protocol):
    """What does the runs: processes on this machine, or a cluster."""

    @property
    def size(self) -> int:
        """How many runs at a time."""

    def submit(self, order: Order) -> Future[Outcome]:
        """A run that kills its workers time and again ends as an exception."""

    def share(self, order: Order) -> float:
        """How much of a running run is done."""

    def close(self) -> None:
        """Let running runs save themselves, and end."""


@dataclass
class Tally:
    """Where the study stands."""

    total: int
    done: int  # those done before included
    failed: dict[Cell, str] = field(default_factory=dict)
    running: dict[Cell, float] = field(default_factory=dict)  # with the share that is done
    elsewhere: int = 0  # running in other processes
    ended: int = 0  # here
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """From the pace so far; None before there is one."""
        under_way = sum(self.running.values())
        here = self.ended + under_way
        left = self.total - self.done - len(self.failed) - under_way
        return left * (time.monotonic() - self.started) / here if here > 0.05 else None


Show = Callable[[Tally, "list[str]"], None]  # the second: news, a line each


def run_cells(folder: StudyFolder, wanted: Iterable[Cell], workers: Workers, show: Show) -> Tally:
    """Every wanted run to its end, here or in another process. SIGINT and SIGTERM come out as Stopped."""
    engine = _Engine(folder, wanted, workers)
    with listening() as requests:
        try:
            while not engine.is_idle:
                requests.check()
                news = engine.turn()
                show(engine.tally, news)
        finally:
            workers.close()
    return engine.tally


class _Engine:
    """Cells move from ``waiting`` to ``pending`` and out; those that other processes have come round again."""

    def __init__(self, folder: StudyFolder, wanted: Iterable[Cell], workers: Workers):
        self.folder, self.workers, self.masks = folder, workers, folder.read().masks
        todo = {cell.digest: cell for cell in wanted}  # cells may share a run
        done = {each.cell.digest for each in folder.find().finished} & todo.keys()
        self.tally = Tally(len(todo), len(done))
        self.waiting = deque(cell for digest, cell in todo.items() if digest not in done)
        self.busy: deque[tuple[float, Cell]] = deque()  # with the time to try again
        self.pending: dict[Future[Outcome], tuple[Cell, Order]] = {}

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.busy or self.pending)

    def turn(self) -> list[str]:
        """Hand out what can be handed out, and wait a moment for what comes back."""
        while self.busy and self.busy[0][0] < time.monotonic():
            self.waiting.append(self.busy.popleft()[1])
        while self.waiting and len(self.pending) < self.workers.size:
            cell = self.waiting.popleft()
            order = self._order(cell)
            self.pending[self.workers.submit(order)] = cell, order
        if not self.pending:
            time.sleep(TICK)
        ended = wait(self.pending, TICK, FIRST_COMPLETED).done
        news = [line for future in ended if (line := self._count(future))]
        self.tally.running = {cell: self.workers.share(order) for cell, order in self.pending.values()}
        self.tally.elsewhere = len(self.busy)
        return news

    def _order(self, cell: Cell) -> Order:
        path = self.folder.folder(cell).path.resolve()
        return {"path": str(path), "config": cell.config.plain(), "masks": self.masks}

    def _count(self, future: Future[Outcome]) -> str | None:
        cell, order = self.pending.pop(future)
        try:
            outcome = future.result()
        except Exception as error:  # the run's process died, each time it was tried
            outcome = {"state": "failed", "message": str(error), "seconds": 0.0}
            record_failure(RunFolder(order["path"]), outcome["message"])
        if outcome["state"] == "busy":
            self.busy.append((time.monotonic() + BUSY, cell))
            return None
        self.tally.ended += 1
        if outcome["state"] == "done":
            self.tally.done += 1
            return f"{cell}: done in {duration(outcome['seconds'])}"
        self.tally.failed[cell] = outcome["message"]
        return f"{cell}: failed: {outcome['message']}"
