"""Pad, crop and flip a batch of small images at once, as one gather.

The images lie in one buffer with ``pad`` rows and columns of zeros after each image's own, which serve as the
padding before the next row, channel and image too. A crop shifted by (dy, dx) is then the same window of that buffer,
``dy * width + dx`` further on: one copy of contiguous memory per image, with no padding at run time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cigl.data.splits.draw import below, raw


class ImageStore:
    """uint8 images (n, channels, height, width), laid out for shifted reading."""

    def __init__(self, images: Tensor, pad: int = 0):
        self.size, self.pad = tuple(images.shape[1:]), pad
        channels, height, width = self.size
        if pad:  # one empty image at each end, so that a shift never leaves the buffer
            self.whole = images.new_zeros(len(images) + 2, channels, height + pad, width + pad)
            self.whole[1:-1, :, :height, :width] = images
        else:
            self.whole = images

    def to(self, device: torch.device) -> ImageStore:
        """The same on another device."""
        other = object.__new__(ImageStore)
        other.size, other.pad, other.whole = self.size, self.pad, self.whole.to(device)
        return other

    def plain(self, rows: Tensor) -> Tensor:
        """The images of these rows as they are."""
        if not self.pad:
            return self.whole.index_select(0, rows)
        return self.whole.index_select(0, rows + 1)[:, :, : self.size[1], : self.size[2]]

    def crops(self, rows: Tensor, seed: int, epoch: int, number: int, part: slice = slice(None)) -> Tensor:
        """The images shifted by up to ``pad`` pixels each way, half of them mirrored; a pure function of its input.

        ``number`` is the batch's in its epoch. The draw is made on the CPU and is the same for every device. It is made
        for the whole batch also where only a ``part`` of it is wanted.
        """
        words = raw(3 * len(rows), seed, "augment", epoch, number)
        shifts = torch.from_numpy(below(words[: 2 * len(rows)], 2 * self.pad + 1)) - self.pad
        flips = torch.from_numpy(below(words[2 * len(rows) :], 2)).bool()
        gather = self._gather_by_windows if rows.device.type == "cpu" else self._gather_by_index
        return gather(rows[part], *(t[part].to(rows.device) for t in (*shifts.view(2, -1), flips)))

    def _starts(self, rows: Tensor, dy: Tensor, dx: Tensor) -> Tensor:
        return (rows + 1) * self.whole[0].numel() + dy * (self.size[2] + self.pad) + dx

    def _gather_by_windows(self, rows: Tensor, dy: Tensor, dx: Tensor, flips: Tensor) -> Tensor:
        """On a CPU: whole windows, which are copied at the speed of memory; numpy mirrors faster than torch."""
        shape = self.whole.shape[1:]
        windows = self.whole.view(-1).unfold(0, shape.numel(), 1)
        crops = windows.index_select(0, self._starts(rows, dy, dx)).view(-1, *shape)
        crops = crops[:, :, : self.size[1], : self.size[2]]
        pixels, mirrored = crops.numpy(), flips.nonzero().flatten().numpy()
        pixels[mirrored] = pixels[mirrored][..., ::-1]
        return crops

    def _gather_by_index(self, rows: Tensor, dy: Tensor, dx: Tensor, flips: Tensor) -> Tensor:
        """On any device: one index per pixel."""
        channels, height, width = (torch.arange(n, device=rows.device) for n in self.size)
        _, tall, wide = self.whole.shape[1:]
        columns = torch.where(flips[:, None], width.flip(0), width)
        index = self._starts(rows, dy, dx)[:, None, None, None] + columns[:, None, None, :]
        index = index + (channels[:, None] * tall + height)[..., None] * wide
        return self.whole.view(-1)[index]
