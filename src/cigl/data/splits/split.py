"""A part of a dataset: labelled examples that come in batches.

Batch k of an epoch is a pure function of (seed, epoch, k): neither its order nor its augmentation depends on the
batches before it or on a global generator. So a run that was killed is resumed in the middle of an epoch with
``start=k``, and no state of the data is in its checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.preprocessing import Preprocessing, checked_classes
from cigl.data.splits.draw import order, stratified
from cigl.data.splits.folder import Tree

Indices = Sequence[int] | Tensor | slice
Self = TypeVar("Self", bound="Split")
Share = tuple[int, int]  # (k, n): the k-th of n processes, from 0
WHOLE: Share = (0, 1)


def part_of(count: int, share: Share) -> slice:
    """One process's part of so many things in a row; each is in one part.

    >>> [part_of(10, (k, 4)) for k in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    number, processes = share
    return slice(count * number // processes, count * (number + 1) // processes)


@dataclass(frozen=True)
class Loading:
    """Everything that the inputs of an epoch's batches depend on; ``start`` is the number of the first batch.

    Of each batch, ``share`` is read; the whole batch says how its examples are augmented.
    """

    seed: int
    epoch: int
    augment: bool
    start: int
    device: torch.device
    workers: int
    share: Share = WHOLE


class Split(ABC):
    """Examples with labels; ``labels`` is an int64 tensor on the CPU.

    >>> import cigl
    >>> test = cigl.data.open("mnist1d").test
    >>> x, y = next(test.batches(32))
    >>> x.shape, y.dtype
    (torch.Size([32, 40]), torch.int64)
    """

    labels: Tensor

    @abstractmethod
    def _rows(self: Self, positions: Tensor) -> Self:
        """The examples at these positions, in this order."""

    @abstractmethod
    def _load(self, batches: Sequence[Tensor], loading: Loading) -> Iterator[Tensor]:
        """The inputs of this process's share of the batches, each given by the positions of the whole."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self: Self, indices: Indices) -> Self:
        """The examples at ``indices``: ``split.take(range(10_000))`` are the first 10,000."""
        if isinstance(indices, slice):
            indices = range(len(self))[indices]
        positions = torch.as_tensor(indices if isinstance(indices, Tensor) else list(indices), dtype=torch.int64)
        if positions.ndim != 1 or (
            len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(self)
        ):
            raise CiglError(f"indices must be a list of numbers from 0 to {len(self) - 1}.")
        return self._rows(positions)

    def divide(self: Self, share: float, seed: int) -> tuple[Self, Self]:
        """Hold out ``share`` of each class, the same for the same seed: (the rest, the held-out part).

        The held-out part has round(share * n) examples; classes get whole ones by largest remainders.
        """
        total = round(share * len(self))
        if not 0 < total < len(self):
            raise CiglError(f"a share of {share} leaves nothing on one side of {len(self)} examples: choose another.")
        held = stratified(self.labels.numpy(), total, seed, "divide")
        return self._rows(torch.from_numpy(np.flatnonzero(~held))), self._rows(torch.from_numpy(np.flatnonzero(held)))

    def draw(self: Self, count: int, seed: int) -> Self:
        """``count`` examples at random, the same for the same seed, with the classes in the shares that they have."""
        if not 0 < count <= len(self):
            raise CiglError(f"{count} examples can't be drawn from {len(self)}.")
        return self._rows(torch.from_numpy(np.flatnonzero(stratified(self.labels.numpy(), count, seed, "draw"))))

    def steps(self, batch_size: int, drop_last: bool = False) -> int:
        """How many batches an epoch has."""
        if batch_size < 1:
            raise CiglError(f"a batch has at least one example, not {batch_size}.")
        return len(self) // batch_size if drop_last else -(-len(self) // batch_size)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = False,
        augment: bool = False,
        drop_last: bool = False,
        start: int = 0,
        device: torch.device | str | None = None,
        workers: int = 0,
        share: Share = WHOLE,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (float32, normalised) and labels (int64) of the batches of an epoch.

        Args:
            batch_size: Examples per batch.
            seed: Of order and augmentation.
            epoch: Its number; another epoch has another order.
            shuffle: In random order.
            augment: Random crops and mirror images, where the dataset has them.
            drop_last: Leave out the last batch if it is smaller.
            start: The number of the first batch: batches before it are skipped without being read.
            device: Where the batches are to be.
            workers: Processes that load image folders; data in memory needs none.
            share: (k, n) cuts each batch into n parts, of which the k-th is read: together they are the batch that one
                process would have had.
        """
        steps = self.steps(batch_size, drop_last)
        if start < 0 or epoch < 0 or workers < 0:
            raise CiglError(f"start, epoch and workers count from 0, not {start}, {epoch} and {workers}.")
        target = torch.device("cpu" if device is None else device)
        if not 0 <= share[0] < share[1]:
            raise CiglError(f"share is {share}: give (k, n), the k-th of n processes, from 0.")
        loading = Loading(seed, epoch, augment, start, target, workers, share)
        return self._batches(batch_size, range(start, steps), shuffle, loading)

    def _batches(
        self, batch_size: int, numbers: range, shuffle: bool, loading: Loading
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The generator behind ``batches``, whose arguments are checked at the call, not at the first batch."""
        positions = torch.arange(len(self))
        if shuffle:
            positions = torch.from_numpy(order(len(self), loading.seed, "shuffle", loading.epoch))
        wanted = [positions[k * batch_size : (k + 1) * batch_size] for k in numbers]
        for x, part in zip(self._load(wanted, loading), wanted, strict=True):
            yield x, self.labels[part[part_of(len(part), loading.share)]].to(loading.device)


@dataclass(frozen=True)
class Source:
    """A dataset that is ready for use: ``train`` to learn from, ``test`` to be judged by.

    ``class_names`` are in the order of the classes' numbers; ``preprocessing`` is that of images when they are not
    augmented, or None.

    >>> import cigl
    >>> source = cigl.data.open("mnist1d")
    >>> train, validation = source.train.divide(0.1, seed=0)
    >>> len(train), len(validation)
    (3600, 400)
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    train: Split
    test: Split
    class_names: tuple[str, ...] = ()  # in the order of their numbers; where there are none, the numbers
    preprocessing: Preprocessing | None = None  # of images, when they are not augmented
    files: Tree | None = field(default=None, repr=False, compare=False)  # where images are read as they are needed

    def __post_init__(self) -> None:
        names = checked_classes(self.class_names or tuple(map(str, range(self.classes))))
        if len(names) != self.classes:
            raise CiglError(f"{self.name} has {self.classes} classes, but {len(names)} names for them.")
        object.__setattr__(self, "class_names", names)
