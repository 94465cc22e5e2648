"""How many CPU threads a run is given: by the work in a training step, and the same again when it is resumed.

Threads that share a small step wait for each other longer than they compute, and on a busy machine far longer. The
number of threads decides in which order sums are made, so the last bits of a run depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cigl.train.trainer import Trainer

# Floating-point operations in a step that a thread is worth: about 20 ms of one core, where waking and waiting for
# threads takes up to about 5 (a few hundred parallel regions of a small network).
WORK_PER_THREAD = 1e9


def chosen(flops: float, limit: int) -> int:
    """For a training step of so many operations, on a machine with ``limit`` threads.

    >>> chosen(2e8, 16), chosen(1.3e10, 16), chosen(1e12, 16)
    (1, 13, 16)
    """
    return int(max(1, min(limit, flops / WORK_PER_THREAD)))


def threads_for(trainer: Trainer) -> int:
    """Chosen by the work of a step, where the CPU does it."""
    limit = torch.get_num_threads()
    step = 3 * (trainer.config.batch_size // trainer.ranks.size) * trainer.cost.flops  # two thirds of it backward
    return chosen(step, limit) if trainer.device.type == "cpu" else limit


@contextmanager
def using(threads: int) -> Iterator[None]:
    """So many threads for torch and the sparse kernels, and then as many as before."""
    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads != before:
            torch.set_num_threads(before)


def recorded(versions: dict[str, Any]) -> int | None:
    """What ``versions.json`` of a run says."""
    text = str(versions.get("threads", ""))
    return int(text) if text.isdecimal() and int(text) > 0 else None
