"""Examples that live in one tensor: small images as uint8, anything else as float32.

A subset shares the tensor. A batch is gathered, augmented and normalised where the tensor is; the first batch for a
GPU moves the whole tensor there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from cigl.common.preprocessing import Normal
from cigl.data.augment import ImageStore
from cigl.data.splits.split import Loading, Split, part_of


class Examples(Protocol):
    """What a split in memory reads from: normalised float32 inputs of a share of a batch's rows."""

    def read(self, rows: Tensor, loading: Loading, number: int) -> Tensor: ...


@dataclass
class Vectors:
    """float32 inputs, used as they are."""

    whole: Tensor

    def read(self, rows: Tensor, loading: Loading, number: int) -> Tensor:
        return self.whole.index_select(0, rows[part_of(len(rows), loading.share)]).to(loading.device)


@dataclass
class Images:
    """uint8 images, normalised when read; augmented only if they were stored with padding."""

    store: ImageStore
    normal: Normal
    copies: dict[torch.device, tuple[ImageStore, Tensor, Tensor]] = field(default_factory=dict)

    def read(self, rows: Tensor, loading: Loading, number: int) -> Tensor:
        device = loading.device
        if device not in self.copies:
            self.copies[device] = (self.store.to(device), *self.normal.on(device))
        store, scale, shift = self.copies[device]
        rows, part = rows.to(device), part_of(len(rows), loading.share)
        crop = loading.augment and store.pad > 0
        pixels = store.crops(rows, loading.seed, loading.epoch, number, part) if crop else store.plain(rows[part])
        return pixels.to(torch.float32, memory_format=torch.contiguous_format).mul_(scale).add_(shift)


class MemorySplit(Split):
    """Some rows of shared examples."""

    def __init__(self, examples: Examples, labels: Tensor, rows: Tensor | None = None):
        self._examples, self.labels = examples, labels
        self._index = torch.arange(len(labels)) if rows is None else rows

    def _rows(self, positions: Tensor) -> MemorySplit:
        return MemorySplit(self._examples, self.labels[positions], self._index[positions])

    def _load(self, batches: Sequence[Tensor], loading: Loading) -> Iterator[Tensor]:
        for number, positions in enumerate(batches, loading.start):
            yield self._examples.read(self._index[positions], loading, number)
