"""What the methods cost in training time, against dense training of the same network.

Shortened runs of the two small settings of `cigl study` on random images, 95 % sparse, an epoch of each method in turn.
The masks make no multiplication cheaper here: sparse training pays for its bookkeeping, and gains when the network is
used. Freed memory is kept.
Usage: python benchmarks/methods_cost.py
"""

from __future__ import annotations

import statistics
import time

import torch

from cigl.common.allocation import keep_freed_memory
from cigl.data import Source
from cigl.data.sources.memory import MemorySplit, Vectors
from cigl.study.catalogue import study
from cigl.study.grid import cells
from cigl.train.config import Config
from cigl.train.trainer import Splits, Trainer

METHODS = ("dense", "rigl", "cigl", "cigl-pw", "cigl-mixup")
EPOCHS = {"small": 10, "small-conv": 5}  # long enough for updates of the topology and for averages
SHAPES = {"small": (1, 28, 28), "small-conv": (3, 32, 32)}
ROUNDS = 3


def splits(images: int, shape: tuple[int, ...]) -> Splits:
    split = MemorySplit(Vectors(torch.randn(images, *shape)), torch.randint(10, (images,)))
    return Splits(Source("random", 10, shape, split, split), split, None)


def seconds(trainer: Trainer) -> float:
    """Of one epoch."""
    start = time.perf_counter()
    for _ in trainer.steps():
        pass
    trainer.epoch, trainer.batch = trainer.epoch + 1, 0
    return time.perf_counter() - start


def one_round(configs: dict[str, Config], data: Splits) -> dict[str, float]:
    trainers = {method: Trainer(config, data) for method, config in configs.items()}
    totals = dict.fromkeys(trainers, 0.0)
    for _ in range(configs["dense"].epochs):
        for method, trainer in trainers.items():
            totals[method] += seconds(trainer)
    return totals


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    for scale, epochs in EPOCHS.items():
        configs = {
            cell.method: cell.config.changed(epochs=epochs)
            for cell in cells(study("main", scale))
            if cell.method in METHODS and cell.sparsity in (0.0, 0.95) and cell.seed == 0
        }
        data = splits(configs["dense"].train_size * 9 // 10, SHAPES[scale])
        rounds = [one_round(configs, data) for _ in range(ROUNDS)]
        ratios = {name: statistics.median(one[name] / one["dense"] for one in rounds) for name in METHODS}
        print(
            f"{scale}, training time over dense: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items())
        )


if __name__ == "__main__":
    main()
