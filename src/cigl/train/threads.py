"""How many CPU threads a run is given: by the work in a training step, and the same again when it is resumed.

Threads that share a small step wait for each other longer than they compute, and on a busy machine far longer. The
number of threads decides in which order sums are made, so the last bits of a run depend on it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cigl.calibrate.reports.evaluation import evaluating
from cigl.common.errors import CiglError

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
    return chosen(trainer.step_flops, limit) if trainer.device.type == "cpu" else limit


def step_flops(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> float:
    """Of a forward and a backward pass of the dense network, from one example on a copy of it."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        probe = copy.deepcopy(model)
        example = torch.zeros(1, *shape, device=next(model.parameters()).device)
        with torch.no_grad(), evaluating(probe, None), FlopCounterMode(display=False) as counter:
            probe(example)
        forward = counter.get_total_flops()
    except Exception:  # of a user's model, which will say so in its first step, if it is one
        forward = 2 * sum(each.numel() for each in model.parameters())
    return 3.0 * batch_size * float(forward)


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


def check_threads(threads: Any) -> None:
    if threads is not None and (type(threads) is not int or threads < 1):
        raise CiglError(f"threads is {threads!r}: give a whole number, at least 1.")


def recorded(versions: dict[str, Any]) -> int | None:
    """What ``versions.json`` of a run says."""
    text = str(versions.get("threads", ""))
    return int(text) if text.isdecimal() and int(text) > 0 else None
