"""What is known about a dataset, whoever serves it: compared with what was decoded before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cigl.common.errors import CiglError
from cigl.common.preprocessing import Normal
from cigl.data.sources.formats import Arrays, Bytes


@dataclass(frozen=True)
class Facts:
    """Shape, classes, examples per class, channel means, and how the labels begin (which shows the order)."""

    shape: tuple[int, int, int]
    classes: int
    normal: Normal
    per_class: tuple[tuple[int, ...], tuple[int, ...]]  # training and test set; one number if all classes have it
    first_labels: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    means_known: bool = True
    names: tuple[str, ...] = ()  # of the classes

    def check(self, name: str, arrays: Arrays) -> None:
        """Raise an error that names the first difference."""
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
