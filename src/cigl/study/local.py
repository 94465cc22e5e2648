"""Workers on this machine: processes, each of which takes one run after another."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

from cigl.errors import CiglError
from cigl.study.engine import Order, Outcome

ATTEMPTS = 3  # for a run whose process dies


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalWorkers:
    """``size`` workers that divide the machine's threads. One that dies is replaced, and its run tried again."""

    def __init__(self, size: int, log: Path):
        self.size = size
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
            worker.process.wait()
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
                    worker = _Worker(max(1, cores() // self.size), self._log)
                    self._workers.add(worker)
                if self._closed:
                    worker.stop()  # whatever close() has not seen
                outcome = worker.do(order, lambda share: self._shares.update({order["path"]: share}))
                if outcome is not None:
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
    """The engine's end of a worker process."""

    def __init__(self, threads: int, log: IO[str]):
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, "-m", "cigl.study.worker", str(threads)]
        pipe = subprocess.PIPE
        environment = os.environ | limits
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def do(self, order: Order, report: Callable[[float], None]) -> Outcome | None:
        """The outcome, or None if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed, or a line was cut off
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                answer = json.loads(line)
                if "share" not in answer:
                    return cast(Outcome, answer)
                report(answer["share"])
        return None

    def stop(self) -> None:
        """The end of its orders makes a worker save and end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def ending(self) -> str:
        code = self.process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
