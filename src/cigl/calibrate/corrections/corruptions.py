"""Images made worse step by step, after the corruptions of Hendrycks & Dietterich 2019, on tensors.

The strengths are ours: lengths go with the image's height, so that a severity means the same at 28 and 224 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cigl.common.errors import CiglError, unknown

SEVERITIES = (1, 2, 3, 4, 5)


def check_severity(severity: int) -> int:
    if type(severity) is not int or severity not in SEVERITIES:
        raise CiglError(f"severity is {severity!r}: it is a whole number from 1 (weak) to 5 (strong).")
    return severity


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0, first: int = 0) -> Tensor:
    """Images with a corruption of a given strength, after Hendrycks & Dietterich 2019.

    Args:
        images: Of shape (..., channels, height, width), from 0 to 1. Type, device and shape stay.
        kind: One of noise, blur, contrast, haze and pixelate.
        severity: From 1 (weak) to 5 (strong). From 28 pixels of height on all severities differ; on smaller images
            neighbouring ones of pixelate may not.
        seed: What is random depends on the seed and the image's number alone, never on the batch's size, the device
            or torch's global generator.
        first: The number of the first image.

    >>> import torch
    >>> from cigl.calibrate import corrupt
    >>> corrupt(torch.rand(8, 3, 32, 32), "haze", 3).shape
    torch.Size([8, 3, 32, 32])
    """
    if kind not in KINDS:
        raise unknown("corruption", kind, KINDS)
    check_severity(severity)
    if not isinstance(images, Tensor):
        raise CiglError(f"images are {type(images).__name__}: pass a tensor (..., channels, height, width).")
    if images.ndim < 3 or not images.is_floating_point():
        raise CiglError(
            f"images must be floating-point tensors (..., channels, height, width), not {images.dtype} of "
            f"shape {tuple(images.shape)}; bytes are divided by 255 first."
        )
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise CiglError(
            f"images run from {float(images.min()):.3g} to {float(images.max()):.3g}, not within 0 to 1: "
            "corrupt them before normalising (under_shift takes normalize=)."
        )
    apply, strengths = KINDS[kind]
    flat = images.reshape(-1, *images.shape[-3:]).float()
    worse = apply(flat, strengths[severity - 1], _Random(seed, first))
    return worse.clamp(0, 1).reshape(images.shape).to(images.dtype)


class _Random:
    """Numbers for each image from a generator of its own."""

    def __init__(self, seed: int, first: int):
        self.seed, self.first = seed, first

    def __call__(self, draw: Callable[..., Tensor], like: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Per shape one tensor (images, *shape), on the images' device."""
        rows: list[list[Tensor]] = [[] for _ in shapes]
        generator = torch.Generator()
        for number in range(self.first, self.first + len(like)):
            mixed = np.random.SeedSequence([self.seed % 2**64, number]).generate_state(1, np.uint64)
            generator.manual_seed(int(mixed[0]))
            for row, shape in zip(rows, shapes, strict=True):
                row.append(draw(shape, generator=generator))
        return [
            torch.stack(row).to(like.device) if row else like.new_empty(0, *shape)
            for row, shape in zip(rows, shapes, strict=True)
        ]


def _noise(images: Tensor, deviation: float, random: _Random) -> Tensor:
    (noise,) = random(torch.randn, images, tuple(images.shape[1:]))
    return images + deviation * noise


def _blur(images: Tensor, width: float, random: _Random) -> Tensor:
    """Gaussian, as two passes of one dimension; borders are repeated."""
    channels, height = images.shape[-3], images.shape[-2]
    deviation = width * height / 32
    reach = max(1, round(3 * deviation))
    offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-offsets.square() / (2 * deviation**2))
    kernel = (kernel / kernel.sum()).repeat(channels, 1, 1, 1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel, groups=channels), kernel.mT, groups=channels)


def _contrast(images: Tensor, kept: float, random: _Random) -> Tensor:
    return torch.lerp(images.mean((-2, -1), keepdim=True), images, kept)


def _haze(images: Tensor, density: float, random: _Random) -> Tensor:
    """A bright veil, thicker in some places: random grids of 2, 4 and 8 cells, the finer the weaker."""
    veil = torch.zeros(len(images), 1, *images.shape[-2:], device=images.device)
    for cells, grid in zip((2, 4, 8), random(torch.rand, images, (1, 2, 2), (1, 4, 4), (1, 8, 8)), strict=True):
        veil += F.interpolate(grid, images.shape[-2:], mode="bilinear", align_corners=True) * (2 / cells)
    thickness = density * (0.5 + veil / (2 / 2 + 2 / 4 + 2 / 8))  # about density on average
    return torch.lerp(images, torch.ones_like(images), thickness.clamp(0, 1).expand_as(images))


def _pixelate(images: Tensor, width: float, random: _Random) -> Tensor:
    """The mean of each square block; blocks at the lower and right border may be cut."""
    height = images.shape[-2]
    block = max(2, round(width * height / 32))
    blocks = F.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False)
    large = blocks.repeat_interleave(block, -2).repeat_interleave(block, -1)
    return large[..., :height, : images.shape[-1]]


Corruption = Callable[[Tensor, float, _Random], Tensor]
KINDS: dict[str, tuple[Corruption, tuple[float, ...]]] = {
    "noise": (_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "blur": (_blur, (0.4, 0.6, 0.8, 1.1, 1.5)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "haze": (_haze, (0.2, 0.35, 0.5, 0.65, 0.8)),
    "pixelate": (_pixelate, (2.0, 3.0, 4.0, 5.5, 7.0)),
}
