"""The other processes of a training under DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cigl.sparsify.checks import check_same_masks
from cigl.sparsify.layer import Layer


class Processes:
    """Found at the first training forward inside DistributedDataParallel; until then there is one process."""

    def __init__(self, layers: Sequence[Layer]):
        self._layers = layers
        self._ddp: DistributedDataParallel | None = None

    @property
    def are_several(self) -> bool:
        return self._ddp is not None

    def find(self) -> None:
        if self._ddp is None and (ddp := _active_ddp()) is not None:
            check_same_masks(self._layers, ddp)
            self._ddp = ddp

    def average(self, tensor: Tensor) -> None:
        """What DDP does to p.grad, for a kept dense gradient: it was kept before the all-reduce."""
        assert self._ddp is not None
        group = self._ddp.process_group
        torch.distributed.all_reduce(tensor, group=group)
        tensor /= torch.distributed.get_world_size(group)


def _active_ddp() -> DistributedDataParallel | None:
    """The DistributedDataParallel module in whose forward we are, if any."""
    getter = getattr(DistributedDataParallel, "_get_active_ddp_module", None)
    found = getter() if getter is not None else None
    return found if isinstance(found, DistributedDataParallel) else None
