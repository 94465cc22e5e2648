"""Workers on a Ray cluster: a run is a task, or one for each of its ranks, in a placement group of its own.

When a task is lost, the others of its run end, and the run is resumed in a new placement group. The study's folder must
be on a file system that all nodes see, because checkpoints and locks are there.
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

PATIENCE = 60.0  # seconds for runs to save themselves
MOST = 1000  # runs at a time; a thread waits for each
TICK = 1.0  # seconds after which such a thread looks whether the study was stopped


class RayWorkers:
    """``address`` is local (a Ray of our own, for ``jobs`` runs at a time), auto, or a cluster's."""

    def __init__(self, address: str, jobs: int, ranks: int = 1):
        self._ray, self._ranks = find_ray(), ranks
        own = {"num_cpus": jobs * ranks, "include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, log_to_driver=False, logging_level="error", **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CiglError(
                f"there is no Ray at {address!r} ({str(error).splitlines()[0]}): try --ray local."
            ) from error
        if self._cpus < ranks:
            self._ray.shutdown()
            raise CiglError(f"a run of {ranks} ranks needs {ranks} CPUs, and the Ray at {address!r} has {self._cpus}.")
        self._task = self._ray.remote(max_retries=0)(_task)
        self._threads = ThreadPoolExecutor(MOST)
        self._tasks: list[Any] = []
        self._rendezvous_points: set[Rendezvous] = set()  # ranks that save themselves still need theirs
        self._stopped = False

    @property
    def _cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    @property
    def size(self) -> int:
        """A cluster may grow while we work."""
        return max(1, self._cpus // self._ranks)

    def submit(self, order: Order) -> Future[Outcome]:
        return self._threads.submit(self._do, order)

    def share(self, order: Order) -> float:
        return 0.0  # what a task far away has done so far is not known here

    def close(self) -> None:
        """No run is tried again. Nothing asks Ray once its tasks have ended, which would start it again."""
        self._stopped = True
        running = list(self._tasks)
        self._threads.shutdown(cancel_futures=True)
        for task in running:
            self._ray.cancel(task)  # as Ctrl-C does: the run saves itself
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=PATIENCE)
        self._ray.shutdown()

    def _do(self, order: Order) -> Outcome:
        reason = ""
        for _ in range(ATTEMPTS):
            self._check()
            try:
                return self._try(order)
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
        raise CiglError(f"a process of this run died, {ATTEMPTS} times ({reason}).")

    def _try(self, order: Order) -> Outcome:
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        gpus = int(order["config"]["device"].startswith("cuda"))
        places = placement_group([{"CPU": 1} | ({"GPU": 1} if gpus else {})] * self._ranks)
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


def _task(order: Order, variables: dict[str, str]) -> Outcome:
    import torch

    from cigl.study.work import do_order
    from cigl.train.ranks.rendezvous import joined

    torch.set_num_threads(1)  # Ray counts a CPU for it
    with _environment(variables), joined() as ranks:
        outcome = do_order(order, None, ranks)
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


def find_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise CiglError("Ray is not installed: pip install 'cigl[ray]', or leave --ray out.") from error
    return ray
