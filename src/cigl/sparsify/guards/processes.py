"""The other processes of a training under DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cigl.common.errors import CiglError
from cigl.sparsify.guards.checks import check_same_masks
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import average


class Processes:
    """Found at the first training forward inside DistributedDataParallel; until then there is one process.

    ``follows_steps`` says that M or Z depend on the step, so that every process must take the same steps.
    """

    def __init__(self, layers: Sequence[Layer], follows_steps: bool):
        self._layers, self._follows_steps = layers, follows_steps
        self._ddp: DistributedDataParallel | None = None

    @property
    def is_distributed(self) -> bool:
        return self._ddp is not None

    def find(self) -> None:
        ddp = _active_ddp()
        if ddp is None:
            return
        if _may_end_early(ddp):
            if self._follows_steps:
                raise CiglError(
                    "DistributedDataParallel.join() lets processes take different numbers of steps, but masks are "
                    "those of a step: give every process the same number of batches, or use "
                    "join(throw_on_early_termination=True)."
                )
        elif self._ddp is None:
            check_same_masks(self._layers, ddp)
            self._ddp = ddp

    def mean(self, numbers: list[float]) -> list[float]:
        """Over all processes that train this model; each of them must ask."""
        sharded = next((layer.parameter for layer in self._layers if layer.part.group is not None), None)
        if sharded is None and self._ddp is None:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self._layers[0].weight.device)
        if sharded is not None:
            average(sharded, [tensor])
        else:
            self.average(tensor)
        return [float(number) for number in tensor]

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


def _may_end_early(ddp: DistributedDataParallel) -> bool:
    """Within ``ddp.join()`` processes may run out of batches, and then answer DDP's own collectives only."""
    config = getattr(ddp, "_join_config", None)
    return config is not None and config.enable and not config.throw_on_early_termination
