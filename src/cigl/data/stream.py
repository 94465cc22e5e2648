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
from cigl.data.picture import random_crop
from cigl.data.split import Loading, Source, Split, part_of
from cigl.errors import CiglError, CiglWarning
from cigl.images import read
from cigl.preprocessing import LONGEST_NAME, Preprocessing, printable

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LARGEST = 224
SMALL = 64  # images up to this size are taken whole, of larger ones 7/8: 224 of 256 pixels


class _Pictures(Dataset["Tensor | str"]):
    """What a worker does: an index in, pixels out, or the reason why not (one line; torch would send a traceback)."""

    def __init__(self, root: Path, listing: Listing, preprocessing: Preprocessing, loading: Loading):
        self.root, self.listing, self.preprocessing, self.loading = root, listing, preprocessing, loading

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            image = read(os.path.join(self.root, os.fsdecode(self.listing.paths[index])))
        except CiglError as error:
            return str(error)
        if not self.loading.augment:
            return torch.from_numpy(self.preprocessing.middle(image))
        key = (self.loading.seed, self.loading.epoch, index)
        return torch.from_numpy(random_crop(image, self.preprocessing.size[0], key))


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

    def __init__(self, root: Path, listing: Listing, preprocessing: Preprocessing, learn: bool):
        self._root, self._listing, self._preprocessing, self._learn = root, listing, preprocessing, learn
        self.labels = torch.from_numpy(listing.labels)

    def _rows(self, positions: Tensor) -> FolderSplit:
        rows = positions.numpy()
        listing = Listing(self._listing.paths[rows], self._listing.labels[rows])
        return FolderSplit(self._root, listing, self._preprocessing, self._learn)

    def _load(self, batches: Sequence[Tensor], loading: Loading) -> Iterator[Tensor]:
        loading = replace(loading, augment=loading.augment and self._learn)
        loader = DataLoader(
            _Pictures(self._root, self._listing, self._preprocessing, loading),
            batch_sampler=[whole[part_of(len(whole), loading.share)].tolist() for whole in batches],
            num_workers=min(loading.workers, len(batches)),
            collate_fn=_together,
            generator=torch.Generator(),  # its own, because a loader draws a number from it
            worker_init_fn=_leave_signals,
        )
        for batch in loader:
            if isinstance(batch, str):
                raise CiglError(batch)
            yield self._preprocessing.normalised(batch.to(loading.device))


def open_folder(name: str, root: Path, size: int | None = None) -> Source:
    """The images under ``root``, by default as large as the first one's shorter side, but at most 224 pixels."""
    tree = scan(root)
    if size is None:
        size = min(LARGEST, *read(os.path.join(root, os.fsdecode(tree.train.paths[0]))).size)
    preprocessing = Preprocessing(size, MEAN, STD, crop=1.0 if size <= SMALL else 7 / 8)
    train = FolderSplit(root, tree.train, preprocessing, learn=True)
    test = FolderSplit(root, tree.test, preprocessing, learn=False)
    names = tuple(printable(each)[:LONGEST_NAME] for each in tree.classes)
    return Source(name, len(names), preprocessing.shape, train, test, names, preprocessing)


def open_imagenet(root: Path) -> Source:
    """ImageNet at 224 pixels; a part of it works too, but not unnoticed."""
    source = open_folder("imagenet", root, LARGEST)
    if source.classes != 1_000:
        warnings.warn(f"{root} has {source.classes} classes; ImageNet has 1,000.", CiglWarning, stacklevel=3)
    return source
