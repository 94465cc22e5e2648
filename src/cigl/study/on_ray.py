"""Workers on a Ray cluster: each run is a task. Ray moves lost tasks to another worker, where the run is resumed.

The study's folder must be on a file system that all nodes see, because checkpoints and locks are there.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

from cigl.common.errors import CiglError
from cigl.study.engine import Order, Outcome
from cigl.study.local import ATTEMPTS
from cigl.study.ray_ranks import RankTasks

PATIENCE = 60.0  # seconds for runs to save themselves


class RayWorkers:
    """``address`` is local (a Ray of our own, for ``jobs`` runs at a time), auto, or a cluster's.

    A run is one task, or one for each of its ``ranks``.
    """

    def __init__(self, address: str, jobs: int, ranks: int = 1):
        self._ray, self._ranks = find_ray(), ranks
        own = {"num_cpus": jobs * ranks, "include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, log_to_driver=False, logging_level="error", **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CiglError(
                f"there is no Ray at {address!r} ({str(error).splitlines()[0]}): try --ray local."
            ) from error
        self._task = self._ray.remote(max_retries=ATTEMPTS - 1, num_cpus=1)(_task)
        self._running: dict[Future[Outcome], Any] = {}
        if self._cpus < ranks:
            self._ray.shutdown()
            raise CiglError(f"a run of {ranks} ranks needs {ranks} CPUs, and the Ray at {address!r} has {self._cpus}.")
        self._together = RankTasks(self._ray, ranks) if ranks > 1 else None

    @property
    def _cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    @property
    def size(self) -> int:
        """A cluster may grow while we work."""
        return max(1, self._cpus // self._ranks)

    def submit(self, order: Order) -> Future[Outcome]:
        gpus = 1 if order["config"]["device"].startswith("cuda") else 0
        if self._together is not None:
            return self._together.submit(order, gpus)
        task = self._task.options(num_gpus=gpus).remote(order)
        future = cast("Future[Outcome]", task.future())
        self._running[future] = task
        future.add_done_callback(lambda each: self._running.pop(each, None))
        return future

    def share(self, order: Order) -> float:
        return 0.0  # what a task far away has done so far is not known here

    def close(self) -> None:
        tasks = list(self._running.values())
        if self._together is not None:
            tasks = self._together.stop()
        for task in tasks:
            self._ray.cancel(task)  # as Ctrl-C does: the run saves itself
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)
        self._ray.shutdown()


def _task(order: Order) -> Outcome:
    import torch

    from cigl.study.work import work

    torch.set_num_threads(1)  # Ray counts a CPU for it
    return work(order)


def find_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise CiglError("Ray is not installed: pip install 'cigl[ray]', or leave --ray out.") from error
    return ray
