"""The files that datasets come in, read into arrays. Nothing is unpickled: none of these formats can hold code."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cigl.common.errors import CiglError
from cigl.common.images import read
from cigl.data.splits.folder import scan

Bytes = npt.NDArray[np.uint8]


class Arrays(NamedTuple):
    """A decoded dataset: images as (n, channels, height, width), labels as (n,), all uint8."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def idx(path: Path) -> Bytes:
    """An IDX file of bytes (LeCun 1998), gzipped or not: two zeros, type 8, dimensions, their sizes, the bytes."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise CiglError(f"{path.name} is damaged: {error}.") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise CiglError(f"{path.name} is not an IDX file of bytes.")
    start = 4 + 4 * raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4"))
    if len(shape) != raw[3] or len(raw) - start != int(np.prod(shape, dtype=object)):
        raise CiglError(f"{path.name} is damaged: {len(raw) - start:,} bytes don't make {shape}.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def idx_folder(folder: Path) -> Arrays:
    """The four IDX files of MNIST and its likes, wherever they are under ``folder``."""
    images, labels = [], []
    for part in ("train", "t10k"):
        images.append(idx(_find(folder, f"{part}-images-idx3-ubyte"))[:, None])
        labels.append(idx(_find(folder, f"{part}-labels-idx1-ubyte")))
    return Arrays(images[0], labels[0], images[1], labels[1])


def _find(folder: Path, name: str) -> Path:
    for found in (*sorted(folder.rglob(name)), *sorted(folder.rglob(name + ".gz"))):
        if found.is_file():
            return found
    raise CiglError(f"{name} is missing in what was fetched.")


def cifar_records(path: Path, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Images and labels of a CIFAR binary file: the label bytes (the last is the fine one), then 3 x 32 x 32 pixels."""
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    size = label_bytes + 3072
    if not len(raw) or len(raw) % size:
        raise CiglError(f"{path.name} is damaged: {len(raw):,} bytes are not a whole number of {size}-byte records.")
    records = raw.reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def cifar_folder(folder: Path, train: tuple[str, ...], test: str, label_bytes: int) -> Arrays:
    """The official binary version of CIFAR-10 (1 label byte) or CIFAR-100 (2), unpacked under ``folder``."""
    parts = [cifar_records(_find(folder, name), label_bytes) for name in train]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Arrays(images, labels, *cifar_records(_find(folder, test), label_bytes))


def cifar_sheets(folder: Path) -> Arrays:
    """CIFAR-10 as PNG sheets: each row of a sheet is one image, 1,024 pixels long; labels are JSON lists."""
    train = [_sheet(_find(folder, f"data_batch_{n}.png")) for n in range(1, 6)]
    labels = [_labels(_find(folder, f"{part}_lables.json")) for part in ("train", "test")]  # spelt so there
    return Arrays(np.concatenate(train), labels[0], _sheet(_find(folder, "test_batch.png")), labels[1])


def _sheet(path: Path) -> Bytes:
    pixels = np.asarray(read(str(path)))
    if pixels.shape[1:] != (1024, 3):
        raise CiglError(f"{path.name} should be rows of 1,024 RGB pixels, but is {pixels.shape}.")
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _labels(path: Path) -> Bytes:
    try:
        values = np.array(json.loads(path.read_bytes()), dtype=np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise CiglError(f"{path.name} is not a list of labels: {error}.") from error
    if values.ndim != 1 or (len(values) and not 0 <= values.min() <= values.max() < 256):
        raise CiglError(f"{path.name} is not a list of labels.")
    return values.astype(np.uint8)


def tiny_imagenet_folder(folder: Path) -> Arrays:
    """Tiny ImageNet as published, decoded: its training images, and its validation images to test with."""
    tree = scan(_find(folder, "wnids.txt").parent)
    parts = []
    for listing in (tree.train, tree.test):
        images = np.empty((len(listing.paths), 3, 64, 64), np.uint8)
        for row, path in enumerate(listing.paths):
            image = read(os.path.join(tree.root, os.fsdecode(path)))
            if image.size != (64, 64):
                raise CiglError(f"{os.fsdecode(path)} has {image.size} pixels, not 64 x 64.")
            images[row] = np.asarray(image).transpose(2, 0, 1)
        parts += [images, listing.labels.astype(np.uint8)]
    return Arrays(*parts)
