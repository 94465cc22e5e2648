"""The ranks of a run on Ray: a placement group with a place for each, and a task in each place.

When one of the tasks is lost, the others end, and the run is tried again in a new placement group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from cigl.common.errors import CiglError
from cigl.study.engine import Order, Outcome
from cigl.study.local import ATTEMPTS
from cigl.study.rendezvous import Rendezvous

MOST = 1000  # runs at a time; a thread waits for each
TICK = 1.0  # seconds after which such a thread looks whether the study was stopped


class RankTasks:
    """Runs whose ``ranks`` are placed by Ray."""

    def __init__(self, ray: Any, ranks: int):
        self._ray, self._ranks = ray, ranks
        self._task = ray.remote(max_retries=0)(_rank_task)
        self._threads = ThreadPoolExecutor(MOST)
        self._tasks: list[Any] = []
        self._rendezvous_points: set[Rendezvous] = set()  # ranks that save themselves still need theirs
        self._stopped = False

    def submit(self, order: Order, gpus: int) -> Future[Outcome]:
        return self._threads.submit(self._do, order, gpus)

    def stop(self) -> list[Any]:
        """No run is tried again; returns those under way. Nothing asks Ray afterwards, which would start it anew."""
        self._stopped = True
        running = list(self._tasks)
        self._threads.shutdown(cancel_futures=True)
        return running

    def _do(self, order: Order, gpus: int) -> Outcome:
        reason = ""
        for _ in range(ATTEMPTS):
            self._check()
            try:
                return self._try(order, gpus)
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
        raise CiglError(f"a rank of this run died, {ATTEMPTS} times ({reason}).")

    def _try(self, order: Order, gpus: int) -> Outcome:
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        places = placement_group([{"CPU": 1} | ({"GPU": gpus} if gpus else {})] * self._ranks)
        tasks: list[Any] = []
        try:
            while not places.wait(TICK):
                self._check()
            rendezvous = Rendezvous(self._ranks, self._ray.util.get_node_ip_address())
            self._rendezvous_points.add(rendezvous)
            for rank in range(self._ranks):
                place = PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=rank)
                options = self._task.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=place)
                variables = rendezvous.variables(rank, on_node=0)  # which sees its own GPU alone
                tasks.append(options.remote(order, variables))
            self._tasks += tasks
            outcome: Outcome = self._result(tasks[0])
            with suppress(self._ray.exceptions.RayError):  # a run that has failed ends them all
                for task in tasks[1:]:
                    self._result(task)
            self._rendezvous_points.discard(rendezvous)
            return outcome
        finally:
            self._tasks = [task for task in self._tasks if task not in tasks]
            if not self._stopped:  # without their places, ranks could not save themselves
                remove_placement_group(places)

    def _result(self, task: Any) -> Any:
        while not self._ray.wait([task], timeout=TICK)[0]:
            self._check()
        return self._ray.get(task)

    def _check(self) -> None:
        if self._stopped:
            raise CiglError("the study was stopped before this run was done.")


def _rank_task(order: Order, variables: dict[str, str]) -> Outcome:
    import torch

    from cigl.study.work import work
    from cigl.train.ranks.rendezvous import joined

    torch.set_num_threads(1)  # Ray counts a CPU for it
    with _environment(variables), joined() as ranks:
        outcome = work(order, None, ranks)
        if outcome["state"] == "failed" and not ranks.is_main:
            raise CiglError(outcome["message"])  # rank 0 may be waiting for this one
        return outcome


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Ray's processes take one task after another."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
