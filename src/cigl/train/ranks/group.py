"""The ranks of a run: the processes that train it together, as torchrun starts them. One process is the only rank.

Rank 0 writes and speaks. Everything that ranks tell each other goes through one collective, ``_of_all``; gradients go
through DistributedDataParallel. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from cigl.common.errors import CiglError
from cigl.data.splits.split import Share, part_of


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run.

    >>> Ranks().gather("alone"), Ranks().sum([1.5, 2.0])
    (['alone'], [1.5, 2.0])
    """

    rank: int = 0
    size: int = 1
    on_node: int = 0  # the rank among those of this machine, which is the number of its GPU

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> Share:
        return self.rank, self.size

    def part(self, count: int) -> slice:
        """This rank's part of so many things in a row: each is in the part of one rank."""
        return part_of(count, self.share)

    # What all ranks call at the same moment

    def gather(self, value: Any) -> list[Any]:
        """What each rank passed, by rank; plain values that JSON can hold."""
        if self.size == 1:
            return [value]
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(each.tolist())) for each in self._rows_of_all(text)]

    def from_main(self, value: Any) -> Any:
        """What rank 0 passed."""
        return self.gather(value if self.is_main else None)[0]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Added in the order of the ranks, so that every rank has the same bits."""
        parts = [each.tolist() for each in self._of_all(torch.tensor(numbers, dtype=torch.float64))]
        return [sum(column[1:], column[0]) for column in zip(*parts, strict=True)]

    def largest(self, number: int) -> int:
        return max(int(each) for each in self._of_all(torch.tensor(int(number))))

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its mean over the ranks."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([each.detach().flatten().cpu() for each in tensors])
        mean = torch.stack(self._of_all(flat)).mean(0)
        for each, value in zip(tensors, mean.split([each.numel() for each in tensors]), strict=True):
            each.detach().copy_(value.view_as(each))

    def concatenate(self, rows: Tensor) -> Tensor:
        """The rows of all ranks in order; each may have another number of them."""
        parts = self._rows_of_all(rows)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def generators(self) -> list[Tensor]:
        """The state of torch's global generator, by rank."""
        return self._of_all(torch.get_rng_state())

    def refuse_different(self, mine: dict[str, Any]) -> None:
        """Every rank must have been given the same."""
        first, *others = self.gather(mine)
        for rank, theirs in enumerate(others, 1):
            for name in first.keys() | theirs.keys():
                if first.get(name) != theirs.get(name):
                    raise CiglError(
                        f"the ranks of a run must be started alike, but {name} is {first.get(name)} on rank 0 and "
                        f"{theirs.get(name)} on rank {rank}: give every node the same command, data and versions."
                    )

    def _rows_of_all(self, rows: Tensor) -> list[Tensor]:
        counts = [int(each) for each in self._of_all(torch.tensor(len(rows)))]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        return [each[:count] for each, count in zip(self._of_all(padded), counts, strict=True)]

    def _of_all(self, mine: Tensor) -> list[Tensor]:
        """Of the same shape on every rank, on the CPU."""
        if self.size == 1:
            return [mine]
        found = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(found, mine)
        return found


ONE = Ranks()
