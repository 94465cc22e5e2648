"""The paper's datasets and yours: fetched once, verified by content, read in batches that a resumed run repeats.

cigl.data.get("cifar10")
source = cigl.data.open("cifar10")
train, validation = source.train.divide(0.1, seed=0)
for x, y in train.batches(128, seed=0, epoch=3, shuffle=True, augment=True): ...
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from cigl.common.errors import CiglError, unknown
from cigl.common.preprocessing import Preprocessing
from cigl.data.augment import ImageStore
from cigl.data.catalogue import FETCHED, GENERATED, OWN, STREAMED, Dataset
from cigl.data.fetch import fetch_dataset
from cigl.data.sources import store
from cigl.data.sources.memory import Images, MemorySplit
from cigl.data.sources.own import from_reference, from_tensors
from cigl.data.splits.folder import VAL_SPLIT, scan
from cigl.data.splits.split import Source, Split
from cigl.data.splits.stream import open_folder

__all__ = ["Source", "Split", "from_tensors", "get", "names", "open"]


def names() -> dict[str, str]:
    """All datasets, each with one line about it.

    >>> import cigl
    >>> list(cigl.data.names())[:3]
    ['mnist1d', 'mnist', 'fashion-mnist']
    """
    return {name: entry.line for table in (GENERATED, FETCHED, STREAMED) for name, entry in table.items()} | OWN


def get(name: str, folder: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Fetch a dataset into the cache folder; nothing happens if it is there.

    Args:
        name: A name from ``cigl.data.names()``.
        folder: The cache folder (default: ``$CIGL_DATA``, else ``~/.cache/cigl``).
        progress: Show a bar.

    >>> import cigl
    >>> cigl.data.get("mnist1d").is_dir()  # generated here, not downloaded
    True
    """
    root = store.root(folder)
    if name in FETCHED:
        return fetch_dataset(name, FETCHED[name], root, progress)
    if (images := images_at(name, folder)) is not None:
        scan(images)
        return images
    open(name, folder)
    return root


def open(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    image_size: int | None = None,
    val_split: float = VAL_SPLIT,
) -> Source:
    """The dataset, ready for use.

    Args:
        name: A name from ``cigl.data.names()``, a folder of images or ``package.module:function``.
        folder: The cache folder (default: ``$CIGL_DATA``, else ``~/.cache/cigl``).
        seed: For data that is generated here, and for what is held out of a folder of images.
        image_size: Of images in folders, in pixels (default: the shorter side of half of them, at most 224).
        val_split: The share of each class to hold out as test data, of a folder without train/ and val/.

    >>> import cigl
    >>> source = cigl.data.open("mnist1d")
    >>> source.shape, source.classes, len(source.train), len(source.test)
    ((40,), 10, 4000, 10000)
    """
    root = store.root(folder)
    images = images_at(name, folder)
    if image_size is not None and images is None:
        raise CiglError(
            f"image_size is {image_size}, but {name} is used as it is: it is for folders of images and imagenet.",
            arguments=("image_size",),
        )
    if name in GENERATED:
        return GENERATED[name].generate(seed, root)
    if name in FETCHED:
        return _stored(name, FETCHED[name], root / name)
    if images is not None:
        if name in STREAMED:
            return STREAMED[name].open(images, image_size)
        return open_folder(name, images, image_size, val_split, seed)
    if ":" in name:
        return from_reference(name)
    raise unknown("dataset", name, names())


def _stored(name: str, dataset: Dataset, place: Path) -> Source:
    if not store.exists(place):
        raise CiglError(f"{name} is not in {place}: run `cigl data get {name}`.")
    arrays, facts = store.load(place, name), dataset.facts
    train = Images(ImageStore(torch.from_numpy(arrays.train_images), dataset.pad), facts.normal)
    test = Images(ImageStore(torch.from_numpy(arrays.test_images)), facts.normal)
    return Source(
        name,
        facts.classes,
        facts.shape,
        MemorySplit(train, torch.from_numpy(arrays.train_labels).long()),
        MemorySplit(test, torch.from_numpy(arrays.test_labels).long()),
        facts.names,
        Preprocessing(facts.shape[1:], facts.normal.mean, facts.normal.std),
    )


def images_at(name: str, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of images that a name means, if it means one: a path, folder:PATH, or a dataset in folders."""
    if name in STREAMED:
        place = store.root(folder) / name
        if not place.is_dir():
            raise CiglError(
                f"{name} needs its owners' permission and can't be fetched here: get it at {STREAMED[name].home}, put "
                f"it (or a link to it) into {place} as train/CLASS/*.JPEG and val/CLASS/*.JPEG; or name its folder."
            )
        return place
    place = Path(name.removeprefix("folder:")).expanduser()
    if name in GENERATED or name in FETCHED or not (name.startswith("folder:") or place.is_dir()):
        return None
    if not place.is_dir():
        raise CiglError(f"there is no folder {place}: give folder:PATH with PATH/CLASS/*.jpg.")
    return place
