"""Workers on this machine: processes, each of which takes one run after another, alone or as the ranks of each run."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

from cigl.common.errors import CiglError
from cigl.study.engine import Order, Outcome
from cigl.study.rendezvous import Rendezvous

ATTEMPTS = 3  # for a run whose process dies
PATIENCE = 30.0  # seconds in which the other ranks of such a run end by themselves


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalWorkers:
    """``size`` workers that divide the machine's threads. One that dies is replaced, and its run tried again.

    A worker is one process, or ``ranks`` of them.
    """

    def __init__(self, size: int, log: Path, ranks: int = 1):
        self.size, self._ranks = size, ranks
        self._log = log.open("a")
        self._threads = ThreadPoolExecutor(size)  # each waits for a worker's answers
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(size):
            self._idle.put(None)  # a worker that has not been started
        self._workers: set[_Worker] = set()
        self._shares: dict[str, float] = {}
        self._closed = False

    def submit(self, order: Order) -> Future[Outcome]:
        return self._threads.submit(self._do, order)

    def share(self, order: Order) -> float:
        return self._shares.get(order["path"], 0.0)

    def close(self) -> None:
        self._closed = True
        for worker in list(self._workers):
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in list(self._workers):
            worker.wait()
        self._log.close()

    def _do(self, order: Order) -> Outcome:
        worker = self._idle.get()
        deaths = 0
        try:
            while True:
                if worker is not None and not worker.is_alive:  # it died between runs, and not of this one
                    self._workers.discard(worker)
                    worker = None
                if worker is None:
                    worker = _Worker(max(1, cores() // (self.size * self._ranks)), self._log, self._ranks)
                    self._workers.add(worker)
                if self._closed:
                    worker.stop()  # whatever close() has not seen
                outcome = worker.do(order, lambda share: self._shares.update({order["path"]: share}))
                if outcome is not None:
                    if self._ranks > 1 and outcome["state"] == "failed":  # which ended them all
                        self._workers.discard(worker)
                        worker.ending()
                        worker = None
                    return outcome
                self._workers.discard(worker)
                how, worker = worker.ending(), None
                if self._closed:
                    raise CiglError("the study was stopped before this run was done.")
                deaths += 1
                if deaths == ATTEMPTS:
                    raise CiglError(f"the process of this run died {deaths} times ({how}); see {self._log.name}.")
        finally:
            self._shares.pop(order["path"], None)
            self._idle.put(worker)


class _Worker:
    """The engine's end of a worker: all its processes get each order, and the first answers."""

    def __init__(self, threads: int, log: IO[str], ranks: int):
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, "-m", "cigl.study.worker", str(threads)]
        pipe = subprocess.PIPE
        self._rendezvous = Rendezvous(ranks)
        self.processes = [
            subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                text=True,
                env=os.environ | limits | self._rendezvous.variables(rank, on_node=rank),
            )
            for rank in range(ranks)
        ]

    @property
    def is_alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def do(self, order: Order, report: Callable[[float], None]) -> Outcome | None:
        """The outcome, or None if a process has ended."""
        answers = self.processes[0].stdout
        assert answers is not None
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed, or a line was cut off
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
            for line in answers:
                answer = json.loads(line)
                if "share" not in answer:
                    return cast(Outcome, answer)
                report(answer["share"])
        return None

    def stop(self) -> None:
        """The end of its orders makes a worker save and end."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def wait(self) -> None:
        for process in self.processes:
            process.wait()

    def ending(self) -> str:
        """How the process that died ended; where there are others, they end because of it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(process.poll() is None for process in self.processes):
            time.sleep(0.1)
        for process in self.processes:
            process.kill()  # nothing happens to one that has ended
        code = min(process.wait() for process in self.processes)  # of a signal, before those of its consequences
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
