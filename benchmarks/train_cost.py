"""What the training loop of `cigl train` costs over a bare PyTorch loop of the same step.

Both train WRN-22-2 at batch 128 on the same random images with the same dense model, so that the difference is the
loop's own: batches, augmentation left out, learning rate, sums, progress. Interleaved, with freed memory
kept, medians, one thread.
Usage: python benchmarks/train_cost.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

import cigl.models
from cigl.common.allocation import keep_freed_memory
from cigl.data import Source
from cigl.data.sources.memory import MemorySplit, Vectors
from cigl.train.config import Config
from cigl.train.trainer import Splits, Trainer

STEPS, BATCH = 6, 128


def splits() -> Splits:
    images = torch.randn(STEPS * BATCH, 3, 32, 32)
    split = MemorySplit(Vectors(images), torch.randint(10, (len(images),)))
    return Splits(Source("random", 10, (3, 32, 32), split, split), split, None)


def bare(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    config = Config(model="wrn-22-2", method="dense", sparsity=0.0, batch_size=BATCH, epochs=1000)
    trainer = Trainer(config, splits())
    trainer.sparse.detach()  # what sparse training costs is another benchmark's question
    model = cigl.models.build("wrn-22-2", 10, (3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    times: dict[str, list[float]] = {"cigl": [], "bare": []}
    for _ in range(2):
        x, y = next(iter(trainer.splits.train.batches(BATCH)))
        steps = trainer.steps()
        for _ in range(STEPS):
            start = time.perf_counter()
            next(steps)
            middle = time.perf_counter()
            bare(model, optimizer, x, y)
            times["cigl"].append(middle - start)
            times["bare"].append(time.perf_counter() - middle)
        trainer.epoch, trainer.batch = trainer.epoch + 1, 0
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    print(f"a step of cigl's loop over a bare one (WRN-22-2, batch {BATCH}): {medians['cigl'] / medians['bare']:.3f}x")
    times_help = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "cigl.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        times_help.append(time.perf_counter() - start)
    print(f"cigl --help: {statistics.median(times_help):.2f} s")


if __name__ == "__main__":
    main()
