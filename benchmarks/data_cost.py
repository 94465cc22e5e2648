"""What augmenting CIFAR costs per core: a batch at once, counted in the same done image by image with PIL.

Both start from the images as the dataset holds them and end with a normalised float batch: pad by 4, crop, mirror.
The PIL side is what torchvision's RandomCrop, RandomHorizontalFlip, ToTensor and Normalize do, written out, with the
batch stacked as a DataLoader stacks it. One thread; interleaved, with freed memory kept; medians.
Usage: python benchmarks/data_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from cigl.common.allocation import keep_freed_memory
from cigl.data.augment import ImageStore
from cigl.data.catalogue import FETCHED
from cigl.data.sources.memory import Images, MemorySplit

BATCH, IMAGES, ROUNDS, GOAL = 128, 5_120, 15, 20
NORMAL = FETCHED["cifar10"].facts.normal
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (NORMAL.mean, NORMAL.std))


def per_image(pixels: np.ndarray) -> Tensor:
    """(height, width, channels) to a normalised tensor, as a pipeline of transforms does it."""
    image = ImageOps.expand(Image.fromarray(pixels), border=4)
    top, left = (int(torch.randint(0, 9, (1,))) for _ in range(2))
    image = image.crop((left, top, left + 32, top + 32))
    if torch.rand(1) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    return x.sub_(MEAN).div_(STD)


def seconds(epoch: Callable[[int], None], number: int) -> float:
    start = time.perf_counter()
    epoch(number)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    labels = torch.arange(IMAGES) % 10
    split = MemorySplit(Images(ImageStore(torch.from_numpy(pixels), pad=4), NORMAL), labels)
    upright = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))

    def batched(epoch: int) -> None:
        for _ in split.batches(BATCH, epoch=epoch, shuffle=True, augment=True):
            pass

    def one_by_one(_: int) -> None:
        order = torch.randperm(IMAGES)
        for part in order.split(BATCH):
            torch.stack([per_image(upright[k]) for k in part.tolist()])
            labels[part]

    times: dict[Callable[[int], None], list[float]] = {batched: [], one_by_one: []}
    for number in range(-2, ROUNDS):
        for epoch, taken in times.items():
            second = seconds(epoch, max(0, number))
            if number >= 0:  # the first two rounds warm up
                taken.append(second)
    fast, slow = (statistics.median(taken) / IMAGES * 1e6 for taken in times.values())
    print(f"CIFAR augmentation, one core, batch {BATCH}: {fast:.2f} µs an image in batches, {slow:.1f} µs with PIL")
    print(f"{slow / fast:.1f} times as fast (goal: at least {GOAL})")


if __name__ == "__main__":
    main()
