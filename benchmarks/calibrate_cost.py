"""What a report costs, in seconds, and what streaming costs, in units of softmax. One thread.

python benchmarks/calibrate_cost.py
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

from cigl.calibrate import Streaming, report


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median of several runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def full_report(n: int = 10_000, classes: int = 10) -> None:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, classes, generator=g)
    labels = (logits / 1.5).softmax(1).multinomial(1, generator=g).squeeze(1)
    taken = seconds(lambda: report(logits=logits, labels=labels, resamples=1000), repeats=7)
    print(f"full report, n = {n:,}, {classes} classes, 1,000 resamples: {taken:.2f} s (at most 1)")


def streaming(n: int = 1_000_000, classes: int = 1000, batch: int = 1000) -> None:
    """The same batches through softmax and through the accumulator, in turns, so that noise hits both."""
    g = torch.Generator().manual_seed(0)
    number = max(2, 10_000 // batch)
    batches = [
        (3 * torch.randn(batch, classes, generator=g), torch.randint(0, classes, (batch,))) for _ in range(number)
    ]
    stream = Streaming(classes)
    softmax, ours, early = 0.0, 0.0, 0
    for index in range(n // batch + 1):
        logits, labels = batches[index % len(batches)]
        start = time.perf_counter()
        logits.softmax(1)
        middle = time.perf_counter()
        stream.update(logits=logits, labels=labels)
        end = time.perf_counter()
        if index:  # the first warms up
            softmax, ours = softmax + middle - start, ours + end - middle
        if index == n // batch // 4:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early
    print(
        f"streaming {n:,} x {classes:,} classes in batches of {batch:,}: {ours:.1f} s, softmax alone "
        f"{softmax:.1f} s, {ours / softmax:.2f} times (at most 2.5); memory + {grown / 1024:.1f} MB"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    full_report()
    for size in (64, 256, 1000, 4000):
        streaming(n=1_000_000 if size == 1000 else 200_000, batch=size)
