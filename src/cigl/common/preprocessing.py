"""What an image becomes before a model sees it, and what the classes are called: the same in training and in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.images import pillow, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096  # pixels a side
MOST_CLASSES = 100_000
LONGEST_NAME = 200
_MODES = {1: "L", 3: "RGB"}  # of as many channels
_INTERPOLATIONS = ("bilinear", "bicubic")
_VALUE_RANGE = [0, 1]  # of pixels, before the mean is subtracted


@dataclass(frozen=True)
class Normal:
    """Channel means and standard deviations of the training set, for pixels from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(scale, shift) such that ``pixels * scale + shift`` is normalised."""
        mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (self.mean, self.std))
        return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)


@dataclass(frozen=True, init=False)
class Preprocessing:
    """How an image becomes an input: its middle, resized, scaled to 0 ... 1, minus ``mean``, divided by ``std``.

    Args:
        size: Height and width, or one number for both.
        mean: Of each channel: three numbers for RGB, one for grey.
        std: Of each channel.
        crop: The share that is kept of the largest centred rectangle of that shape.
        interpolation: "bilinear" or "bicubic". Resizing averages over the pixels that are merged, as Pillow does.

    >>> from cigl import Preprocessing
    >>> Preprocessing(224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875).shape
    (3, 224, 224)
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        crop: float = 1.0,
        interpolation: str = "bilinear",
    ):
        sizes = _numbers([size] * 2 if isinstance(size, int) else size)
        if sizes is None or len(sizes) != 2 or not all(side in range(1, LARGEST + 1) for side in sizes):
            raise CiglError(f"size is {_short(size)}: give (height, width), each from 1 to {LARGEST} pixels.")
        means, deviations = _numbers(mean), _numbers(std)
        if means is None or deviations is None or len(means) not in _MODES or len(deviations) != len(means):
            raise CiglError(
                f"mean is {_short(mean)} and std is {_short(std)}: give three numbers each for RGB, or one for grey."
            )
        if not all(1e-12 <= value <= 1e12 for value in deviations) or not all(abs(value) <= 1e12 for value in means):
            raise CiglError("mean must be finite, and std positive: both are for pixels from 0 to 1.")
        shares = _numbers([crop])
        if shares is None or not 1e-3 <= shares[0] <= 1:
            raise CiglError(f"crop is {_short(crop)}: give the share of the image that is kept, at most 1.")
        if interpolation not in _INTERPOLATIONS:
            raise CiglError(f"interpolation is {_short(interpolation)}: give {' or '.join(_INTERPOLATIONS)}.")
        given = {
            "size": (int(sizes[0]), int(sizes[1])),
            "mean": means,
            "std": deviations,
            "crop": shares[0],
            "interpolation": interpolation,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def mode(self) -> str:
        """Pillow's name for what the channels are: RGB, or L for grey."""
        return _MODES[len(self.mean)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one input."""
        return (len(self.mean), *self.size)

    @property
    def normal(self) -> Normal:
        return Normal(self.mean, self.std)

    def pixels(self, image: Any) -> npt.NDArray[np.uint8]:
        """(channels, height, width) of an image: a path, a PIL image, or bytes as an array or a tensor."""
        return self.middle(to_image(image, self.mode))

    def middle(self, image: Image) -> npt.NDArray[np.uint8]:
        """(channels, height, width) of an image that is in the right mode."""
        height, width = self.size
        method = getattr(pillow().Resampling, self.interpolation.upper())
        image = image.resize((width, height), method, box=centre_box(*image.size, self.size, self.crop))
        return np.ascontiguousarray(np.asarray(image).reshape(height, width, -1).transpose(2, 0, 1))

    def normalised(self, pixels: Tensor) -> Tensor:
        """float32 inputs from a batch of bytes, where the batch is."""
        scale, shift = self.normal.on(pixels.device)
        return pixels.to(torch.float32, memory_format=torch.contiguous_format).mul_(scale).add_(shift)

    # As plain data

    def to_dict(self) -> dict[str, Any]:
        return {
            "size": list(self.size),
            "mode": self.mode,
            "value_range": _VALUE_RANGE,
            "mean": list(self.mean),
            "std": list(self.std),
            "crop": self.crop,
            "interpolation": self.interpolation,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Preprocessing:
        """From ``to_dict``, or from a file that is not trusted; a CiglError if it can't be one."""
        known = ("size", "mode", "value_range", "mean", "std", "crop", "interpolation")
        if not isinstance(data, Mapping) or set(data) != set(known):
            raise CiglError(f"preprocessing must have {', '.join(known)}, and nothing else.")
        made = cls(data["size"], data["mean"], data["std"], crop=data["crop"], interpolation=data["interpolation"])
        if data["mode"] != made.mode or data["value_range"] != _VALUE_RANGE:
            raise CiglError(f"preprocessing has {made.mode} pixels from 0 to 1 here, and nothing else is known.")
        return made


def checked_classes(names: Any) -> tuple[str, ...]:
    """Names of classes: text that can be shown in one line. They may come from a file that is not trusted."""
    if not isinstance(names, (list, tuple)) or not 1 <= len(names) <= MOST_CLASSES:
        raise CiglError(f"classes must be a list of names, at most {MOST_CLASSES:,}.")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
            raise CiglError(f"the class {_short(name)} must be a name of at most {LONGEST_NAME} printable characters.")
    return tuple(names)


def centre_box(width: int, height: int, size: tuple[int, int], crop: float) -> tuple[float, float, float, float]:
    """Left, upper, right and lower edge of the middle of an image, as much as fits in the shape of ``size``."""
    tall, wide = size
    if width * tall <= height * wide:
        across, down = width * crop, width * tall / wide * crop
    else:
        across, down = height * wide / tall * crop, height * crop
    left, upper = (width - across) / 2, (height - down) / 2
    return left, upper, left + across, upper + down


def _numbers(values: Any) -> tuple[float, ...] | None:
    """Finite numbers, a few of them; None if they are something else."""
    if not isinstance(values, (list, tuple)) or len(values) > 4:
        return None
    finite = all(isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= 1e30 for value in values)
    return tuple(float(value) for value in values) if finite else None


def _short(value: Any) -> str:
    return repr(value)[:60]
