"""Image folders in batches, decoded by worker processes as they are needed."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.images import read, size_of
from cigl.common.preprocessing import LONGEST_NAME, Preprocessing
from cigl.common.text import printable
from cigl.data.splits.folder import VAL_SPLIT, Listing, Tree, scan
from cigl.data.splits.picture import random_crop, random_shift
from cigl.data.splits.split import Loading, Source, Split, part_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LARGEST = 224  # unless a size is asked for
# Up to this size images are taken whole, and shifted by up to an eighth to learn from, as is usual for CIFAR. Of larger
# ones 7/8 are taken (224 of 256 pixels), and random parts to learn from, as is usual for ImageNet.
SMALL = 64
LOOKED_AT = 100  # images whose size is read to choose one for all


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
        key, size = (self.loading.seed, self.loading.epoch, index), self.preprocessing.size[0]
        if size <= SMALL:
            return torch.from_numpy(random_shift(self.preprocessing.middle(image), max(1, size // 8), key))
        return torch.from_numpy(random_crop(image, size, key))


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
        for batch in self._loader(batches, loading):  # no name for it: a traceback would keep its processes alive
            if isinstance(batch, str):
                raise CiglError(batch)
            yield self._preprocessing.normalised(batch.to(loading.device))

    def _loader(self, batches: Sequence[Tensor], loading: Loading) -> Iterator[Tensor | str]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more than cores: they wait for the disk
            return iter(
                DataLoader(
                    _Pictures(self._root, self._listing, self._preprocessing, loading),
                    batch_sampler=[whole[part_of(len(whole), loading.share)].tolist() for whole in batches],
                    num_workers=min(loading.workers, len(batches)),
                    collate_fn=_together,
                    generator=torch.Generator(),  # its own, because a loader draws a number from it
                    worker_init_fn=_leave_signals,
                )
            )


def open_folder(name: str, root: Path, size: int | None = None, val_split: float = VAL_SPLIT, seed: int = 0) -> Source:
    """The images under ``root``, by default as large as the shorter side of half of them, but at most 224 pixels."""
    tree = scan(root, val_split, seed)
    for problem in tree.problems():
        warnings.warn(problem, CiglWarning, stacklevel=3)
    if size is None:
        size = min(LARGEST, usual_size(tree))
    preprocessing = Preprocessing(size, MEAN, STD, crop=1.0 if size <= SMALL else 7 / 8)
    train = FolderSplit(root, tree.train, preprocessing, learn=True)
    test = FolderSplit(root, tree.test, preprocessing, learn=False)
    names = tuple(printable(each)[:LONGEST_NAME] for each in tree.classes)
    return Source(name, len(names), preprocessing.shape, train, test, names, preprocessing, tree)


def usual_size(tree: Tree) -> int:
    """The median of the shorter sides of some training images, spread over all; damaged ones don't count."""
    sides = []
    for index in np.linspace(0, len(tree.train.paths) - 1, LOOKED_AT, dtype=np.int64):
        with suppress(CiglError):
            sides.append(min(size_of(tree.path(tree.train, int(index)))))
    if not sides:
        raise CiglError(f"no image in {tree.root} can be read: `cigl data check {tree.root}` says why.")
    return sorted(sides)[len(sides) // 2]


def open_imagenet(root: Path, size: int | None = None) -> Source:
    """ImageNet at 224 pixels, or the size that is asked for; a part of it works too, but not unnoticed."""
    source = open_folder("imagenet", root, size or LARGEST)
    if source.classes != 1_000:
        warnings.warn(f"{root} has {source.classes} classes; ImageNet has 1,000.", CiglWarning, stacklevel=3)
    return source
