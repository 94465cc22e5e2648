"""What is known about each dataset, whoever serves it: compared with what was decoded before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cigl.data.formats import Arrays, Bytes
from cigl.data.memory import Normal
from cigl.errors import CiglError


@dataclass(frozen=True)
class Facts:
    """Shape, number of classes, examples per class, channel means, and how the labels begin (which tells the order)."""

    shape: tuple[int, int, int]
    classes: int
    normal: Normal
    per_class: tuple[tuple[int, ...], tuple[int, ...]]  # training and test set; one number if all classes have it
    first_labels: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    means_known: bool = True

    def check(self, name: str, arrays: Arrays) -> None:
        """Raise an error that tells the first difference."""
        parts = (arrays.train_images, arrays.train_labels), (arrays.test_images, arrays.test_labels)
        for part, (images, labels), counts, first in zip(
            ("training", "test"), parts, self.per_class, self.first_labels, strict=True
        ):
            wrong = self._difference(images, labels, counts, first)
            if wrong:
                raise CiglError(f"this is not {name}: the {part} set has {wrong}.")
        means = pixel_means(arrays.train_images)
        if self.means_known and np.abs(means - self.normal.mean).max() > 6e-5:
            raise CiglError(f"this is not {name}: the channel means are {means.round(4).tolist()}.")

    def _difference(self, images: Bytes, labels: Bytes, counts: tuple[int, ...], first: tuple[int, ...]) -> str:
        if images.shape != (len(labels), *self.shape):
            return f"images of shape {images.shape} for {len(labels)} labels"
        found = np.bincount(labels, minlength=self.classes)
        expected = np.broadcast_to(counts, (self.classes,))
        if len(found) != self.classes or (found != expected).any():
            return f"{found.tolist()} examples per class"
        if labels[: len(first)].tolist() != list(first):
            return f"labels that begin with {labels[: len(first)].tolist()}"
        return ""


def pixel_means(images: Bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Channel means of pixels from 0 to 1, exact: sums of bytes are whole numbers."""
    sums = images.sum(axis=(0, 2, 3), dtype=np.uint64)
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = sums / (255.0 * images[:, 0].size)
    return means


CIFAR10 = Facts(
    (3, 32, 32),
    10,
    Normal((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ((5_000,), (1_000,)),
    ((6, 9, 9, 4, 1, 1, 2, 7, 8, 3), (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)),
)
CIFAR100 = Facts((3, 32, 32), 100, Normal((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)), ((500,), (100,)))
MNIST = Facts(
    (1, 28, 28),
    10,
    Normal((0.1307,), (0.3081,)),
    (
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    ((5, 0, 4, 1, 9, 2, 1, 3, 1, 4), (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)),
)
FASHION_MNIST = Facts(
    (1, 28, 28),
    10,
    Normal((0.2860,), (0.3530,)),
    ((6_000,), (1_000,)),
    ((9, 0, 0, 3, 0, 2, 7, 2, 5, 5), (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)),
)
# These means are the published ones; how a JPEG is decoded moves them a little, so they aren't compared.
TINY_IMAGENET = Facts(
    (3, 64, 64),
    200,
    Normal((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    ((500,), (50,)),
    means_known=False,
)
