"""Images made worse step by step, after the corruptions of Hendrycks & Dietterich 2019, on tensors.

The strengths are ours: lengths go with the image's height, so that a severity means the same at 28 and 224 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cigl.errors import CiglError, unknown

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """Images (..., channels, height, width) from 0 to 1, corrupted; dtype, device and shape stay.

    Kinds are noise, blur, contrast, haze and pixelate, severities 1 to 5. What is random depends on ``seed`` and
    on an image's place in the batch, never on the device or on torch's global generator.

    >>> corrupt(torch.rand(8, 3, 32, 32), "haze", 3).shape
    torch.Size([8, 3, 32, 32])
    """
    if kind not in KINDS:
        raise unknown("corruption", kind, KINDS)
    if severity not in SEVERITIES:
        raise CiglError(f"severity is {severity!r}: it runs from 1 (weak) to 5 (strong).")
    if images.ndim < 3 or not images.is_floating_point():
        raise CiglError(f"images must be floating-point tensors (..., channels, height, width), not {images.dtype} of "
                        f"shape {tuple(images.shape)}; bytes are divided by 255 first.")  # fmt: skip
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise CiglError(f"images run from {float(images.min()):.3g} to {float(images.max()):.3g}, not within 0 to 1: "
                        "corrupt them before normalising (under_shift takes normalize=).")  # fmt: skip
    apply, strengths = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    flat = images.reshape(-1, *images.shape[-3:]).float()
    worse = apply(flat, strengths[severity - 1], generator)
    return worse.clamp(0, 1).reshape(images.shape).to(images.dtype)


def _noise(images: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    return images + deviation * torch.randn(images.shape, generator=generator).to(images.device)


def _blur(images: Tensor, width: float, generator: torch.Generator) -> Tensor:
    """Gaussian, as two passes of one dimension; borders are repeated."""
    channels, height = images.shape[-3], images.shape[-2]
    deviation = width * height / 32
    reach = max(1, round(3 * deviation))
    offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-offsets.square() / (2 * deviation**2))
    kernel = (kernel / kernel.sum()).repeat(channels, 1, 1, 1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel, groups=channels), kernel.mT, groups=channels)


def _contrast(images: Tensor, kept: float, generator: torch.Generator) -> Tensor:
    return torch.lerp(images.mean((-2, -1), keepdim=True), images, kept)


def _haze(images: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """A bright veil, thicker in some places: random grids of 2, 4 and 8 cells, the finer the weaker."""
    veil = torch.zeros(len(images), 1, *images.shape[-2:], device=images.device)
    for cells in (2, 4, 8):
        grid = torch.rand(len(images), 1, cells, cells, generator=generator).to(images.device)
        veil += F.interpolate(grid, images.shape[-2:], mode="bilinear", align_corners=True) * (2 / cells)
    thickness = density * (0.5 + veil / (2 / 2 + 2 / 4 + 2 / 8))  # about density on average
    return torch.lerp(images, torch.ones_like(images), thickness.clamp(0, 1).expand_as(images))


def _pixelate(images: Tensor, width: float, generator: torch.Generator) -> Tensor:
    """The mean of each square block; blocks at the lower and right border may be cut."""
    height = images.shape[-2]
    block = max(2, round(width * height / 32))
    blocks = F.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False)
    large = blocks.repeat_interleave(block, -2).repeat_interleave(block, -1)
    return large[..., :height, : images.shape[-1]]


Corruption = Callable[[Tensor, float, torch.Generator], Tensor]
KINDS: dict[str, tuple[Corruption, tuple[float, ...]]] = {
    "noise": (_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "blur": (_blur, (0.4, 0.6, 0.8, 1.1, 1.5)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "haze": (_haze, (0.2, 0.35, 0.5, 0.65, 0.8)),
    "pixelate": (_pixelate, (2.0, 3.0, 4.0, 5.5, 7.0)),
}
