"""Image folders in batches, decoded by worker processes as they are needed."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cigl.data.folder import Listing, scan
from cigl.data.memory import Normal
from cigl.data.picture import pixels, read
from cigl.data.split import Loading, Source, Split, part_of
from cigl.errors import CiglError, CiglWarning

IMAGENET = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LARGEST = 224


class _Pictures(Dataset["Tensor | str"]):
    """What a worker does: an index in, pixels out, or the reason why not (one line; torch would send a traceback)."""

    def __init__(self, root: Path, listing: Listing, size: int, loading: Loading):
        self.root, self.listing, self.size, self.loading = root, listing, size, loading

    def __getitem__(self, index: int) -> Tensor | str:
        key = (self.loading.seed, self.loading.epoch, index) if self.loading.augment else None
        try:
            image = read(os.path.join(self.root, os.fsdecode(self.listing.paths[index])))
            return torch.from_numpy(pixels(image, self.size, key))
        except CiglError as error:
            return str(error)


def _leave_signals(worker: int) -> None:
    """A signal to the whole group is the main process's to act on: it saves first, and workers end with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _together(parts: list[Tensor | str]) -> Tensor | str:
    for part in parts:
        if isinstance(part, str):
            return part
    return torch.stack([part for part in parts if isinstance(part, Tensor)])


class FolderSplit(Split):
    """Files with labels; ``workers`` processes read them ahead. Only what is there to ``learn`` from is augmented."""

    def __init__(self, root: Path, listing: Listing, size: int, normal: Normal, learn: bool):
        self._root, self._listing, self._size, self._normal, self._learn = root, listing, size, normal, learn
        self.labels = torch.from_numpy(listing.labels)

    def _rows(self, positions: Tensor) -> FolderSplit:
        rows = positions.numpy()
        listing = Listing(self._listing.paths[rows], self._listing.labels[rows])
        return FolderSplit(self._root, listing, self._size, self._normal, self._learn)

    def _load(self, batches: Sequence[Tensor], loading: Loading) -> Iterator[Tensor]:
        scale, shift = self._normal.on(loading.device)
        loader = DataLoader(
            _Pictures(self._root, self._listing, self._size, replace(loading, augment=loading.augment and self._learn)),
            batch_sampler=[whole[part_of(len(whole), loading.share)].tolist() for whole in batches],
            num_workers=min(loading.workers, len(batches)),
            collate_fn=_together,
            generator=torch.Generator(),  # its own, because a loader draws a number from it
            worker_init_fn=_leave_signals,
        )
        for batch in loader:
            if isinstance(batch, str):
                raise CiglError(batch)
            yield batch.to(loading.device).float().mul_(scale).add_(shift)


def open_folder(name: str, root: Path, size: int | None = None) -> Source:
    """The images under ``root``, by default as large as the first one's shorter side, but at most 224 pixels."""
    tree = scan(root)
    if size is None:
        size = min(LARGEST, *read(os.path.join(root, os.fsdecode(tree.train.paths[0]))).size)
    train = FolderSplit(root, tree.train, size, IMAGENET, learn=True)
    test = FolderSplit(root, tree.test, size, IMAGENET, learn=False)
    return Source(name, len(tree.classes), (3, size, size), train, test)


def open_imagenet(root: Path) -> Source:
    """ImageNet at 224 pixels; a part of it works too, but not unnoticed."""
    source = open_folder("imagenet", root, LARGEST)
    if source.classes != 1_000:
        warnings.warn(f"{root} has {source.classes} classes; ImageNet has 1,000.", CiglWarning, stacklevel=3)
    return source
