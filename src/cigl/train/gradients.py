"""The gradients of several ranks: DistributedDataParallel averages them, with sums that don't depend on its buckets.

Torch puts gradients into buckets, and rearranges those after a process's first step. Gloo adds the ranks' numbers in an
order that depends on the place in the bucket, so that a resumed run would differ in the last bits. On a CPU they are
therefore added in the order of the ranks, with as many bytes sent as usual.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from cigl.common.errors import CiglError


def averaging_gradients(model: nn.Module, device: torch.device, size: int) -> nn.Module:
    """The model, whose backward leaves the mean over ``size`` ranks in every ``p.grad``."""
    network = DistributedDataParallel(model)
    if device.type == "cpu":
        # Torch compares annotations, which are texts here: a lambda has none.
        network.register_comm_hook(size, lambda size, bucket: _average_in_order(size, bucket))
    return network


def _average_in_order(size: int, bucket: Any) -> Future[Tensor]:
    """Each rank adds up one part of the bucket, and the parts are put together."""
    gradients = bucket.buffer()
    whole = F.pad(gradients, (0, -len(gradients) % size))
    parts = torch.empty_like(whole)
    distributed.all_to_all_single(parts, whole)
    first, *others = parts.chunk(size)
    for each in others:
        first += each
    distributed.all_gather(list(whole.chunk(size)), first / size)
    done: Future[Tensor] = Future()
    done.set_result(whole[: len(gradients)])
    return done


def explain(error: RuntimeError) -> RuntimeError | CiglError:
    """Torch's long message on parameters without a gradient, in one sentence."""
    if "Expected to have finished reduction in the prior iteration" not in str(error):
        return error
    return CiglError(
        "the model has parameters that its output doesn't depend on, whose gradients ranks can't average: remove or "
        "freeze them (requires_grad_(False)), or train in one process."
    )
