"""Random parts of images, to learn from: resized crops of large ones, shifts of small ones.

To be judged by there is the middle: cigl.common.preprocessing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cigl.data.splits.draw import below, raw, unit

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]  # left, upper, right, lower
_TRIES = 10


def random_box(width: int, height: int, words: npt.NDArray[np.uint64]) -> Box:
    """A part of 8 to 100 % of the area, 3:4 to 4:3 in shape (Szegedy et al. 2015); four words for each of ten tries."""
    for share, ratio, *place in zip(*np.split(words[: 4 * _TRIES], 4), strict=True):
        area = width * height * (0.08 + 0.92 * float(unit(share)))
        aspect = math.exp((2 * float(unit(ratio)) - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(below(place[0], width - w + 1)), int(below(place[1], height - h + 1))
            return left, upper, left + w, upper + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))  # a very long image: its middle
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def random_crop(image: Image, size: int, key: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """(3, size, size); ``key`` is (seed, epoch, index). Half of them are mirrored."""
    from PIL.Image import Resampling, Transpose

    words = raw(4 * _TRIES + 1, key[0], "picture", *key[1:])
    image = image.resize((size, size), Resampling.BILINEAR, box=random_box(*image.size, words))
    if below(words[-1:], 2)[0]:
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def random_shift(pixels: npt.NDArray[np.uint8], pad: int, key: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """(channels, height, width), shifted by up to ``pad`` pixels each way over zeros; half of them are mirrored."""
    words = raw(3, key[0], "shift", *key[1:])
    down, right = (int(each) for each in below(words[:2], 2 * pad + 1))
    _, height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (pad, pad), (pad, pad)))
    shifted = padded[:, down : down + height, right : right + width]
    return np.ascontiguousarray(shifted[..., ::-1] if below(words[2:], 2)[0] else shifted)
