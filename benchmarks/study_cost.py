"""What the engine of `cigl study run` costs: how busy its workers are with runs, on a grid of short ones.

A worker's busy time is what its runs took inside it. The rest of jobs x wall is the start of the workers (torch, once
each), handing out runs, and the end, when some workers have nothing left to do.
Usage: python benchmarks/study_cost.py [JOBS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from cigl.study.engine import Order, Outcome, run_cells
from cigl.study.grid import Study, cells
from cigl.study.local import LocalWorkers, cores
from cigl.study.store import StudyFolder

RUNS = 12


class Watched(LocalWorkers):
    """Notes what each run took inside its worker, and what it took longer as seen from here."""

    def __init__(self, size: int, log: Path):
        super().__init__(size, log)
        self.busy: list[float] = []
        self.longer: list[float] = []

    def _do(self, order: Order) -> Outcome:
        start = time.monotonic()
        outcome = super()._do(order)
        self.busy.append(outcome["seconds"])
        self.longer.append(time.monotonic() - start - outcome["seconds"])
        return outcome


def main(jobs: int) -> None:
    setting = {"preset": "mnist1d-mlp", "epochs": 20, "validation": 0.1, "temperature": "holdout"}
    study = Study("cost", {"toy": setting}, {"rigl": {"method": "rigl"}}, (0.9,), tuple(range(RUNS)))
    with tempfile.TemporaryDirectory() as place:
        folder = StudyFolder(place)
        folder.create(study)
        workers = Watched(jobs, folder.log)
        wall, own = time.monotonic(), time.process_time()
        tally = run_cells(folder, cells(study), workers, lambda tally, news: None)
        wall, own = time.monotonic() - wall, time.process_time() - own
    assert tally.done == RUNS
    run = statistics.median(workers.busy)
    start, hand_over = max(workers.longer), statistics.median(workers.longer)
    print(f"{RUNS} runs of {run:.1f} s, {jobs} jobs: busy {sum(workers.busy) / (jobs * wall):.1%} of jobs x wall")
    print(f"a worker's start (once): {start / run:.2f} runs; handing over a run: {hand_over / run:.2%} of a run")
    print(f"the engine's own CPU time: {own / sum(workers.busy):.2%} of the runs'")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else cores())
