"""Whole training steps on sparse kernels against dense torch.

A step is zero_grad, forward, loss, backward, optimizer with momentum, CigL's masks, topology rounds and what follows.

    python benchmarks/training_speed.py [--case NAME] [--sparsity 0.9 0.95] [--rounds 5] [--threads 1] [--profile]

Freed memory stays with the process, so that no times are those of the system handing out pages. Dense torch runs in its
fastest layout (channels_last for images) with a fused optimizer. Each round takes a few steps
of each in turn; ratios are of medians. A topology round and the rebuild of patterns that follows are timed apart and
shared out over ``update_every`` = 100 steps. With several threads each engine gets a process of its own, because
waiting threads spin.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

import cigl
import cigl.models
from cigl.common.allocation import keep_freed_memory

EVERY = 100  # steps between topology rounds
FLOORS = {  # with AVX-512 at full width
    "wrn": {0.8: 1.8, 0.9: 3.2, 0.95: 5, 0.99: 9},
    "resnet50": {0.8: 1.5, 0.9: 2.6, 0.95: 4.2, 0.99: 7.5},
    "mlp": {0.8: 1.6, 0.9: 2.5, 0.95: 4, 0.99: 7},
    "transformer": {0.8: 1.8, 0.9: 2.8, 0.95: 3.5, 0.99: 5},
}


class Encoder(nn.Module):
    """Four layers of 512 with a feed-forward of 2048, on sequences of 128 embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def case(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if name == "mlp":
        sizes = (nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
        return nn.Sequential(*sizes), torch.randn(128, 784)
    if name == "transformer":
        return Encoder(), torch.randn(8, 128, 512)
    if name == "wrn":
        return cigl.models.build("wrn-22-2", 10, (3, 32, 32)), torch.randn(128, 3, 32, 32)
    return cigl.models.build("resnet50", 10, (3, 32, 32)), torch.randn(32, 3, 32, 32)


class Training:
    """A loop as a user writes it."""

    def __init__(self, name: str, sparsity: float | None, kernels: str):
        self.model, self.x = case(name)
        self.y = torch.randint(0, 10, (len(self.x),))
        if self.x.dim() == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
            if kernels != "sparse":
                self.model = self.model.to(memory_format=torch.channels_last)
        self.model.train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
        )
        self.sparse = None
        if sparsity is not None:
            self.sparse = cigl.attach(
                self.model, self.optimizer, "cigl", sparsity=sparsity, epochs=1000, steps_per_epoch=100,
                update_every=EVERY, kernels=kernels,
            )  # fmt: skip

    def step(self) -> None:
        loss = F.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def to_round(self) -> float:
        """Seconds beyond ordinary steps that a topology round and the next step, with its rebuild, take."""
        assert self.sparse is not None
        self.sparse._context.step = self.sparse.step // EVERY * EVERY + EVERY - 1
        return seconds(self.step) + seconds(self.step)


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(trainings: dict[str, Training], rounds: int, turn: float) -> dict[str, float]:
    """Median seconds per step, in turns; a share of a topology round is added to the sparse ones."""
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for training in trainings.values():
        training.step()
        training.step()
    for _ in range(rounds):
        for name, training in trainings.items():
            training.step()  # finds its data in memory or in a cache, as the one before has left it
            taken: list[float] = []
            while sum(taken) < turn:
                taken.append(seconds(training.step))
            times[name].append(statistics.median(taken))
    result = {name: statistics.median(each) for name, each in times.items()}
    for name, training in trainings.items():
        if training.sparse is not None and training.sparse.method.update_every:
            extra = statistics.median(training.to_round() for _ in range(3)) - 2 * result[name]
            result[name] += max(extra, 0.0) / EVERY
    return result


def profile(training: Training, steps: int = 5) -> None:
    """Where a step's time goes, kernel by kernel, and how fast those are that multiply and add; and page faults."""
    from cigl.runtime.program.steps import Kind
    from cigl.runtime.training.program import TrainingProgram

    taken: Counter[str] = Counter()
    work: Counter[str] = Counter()
    plain = TrainingProgram._call

    def timed(self, first, last, inputs, outputs, timed):
        seconds = plain(self, first, last, inputs, outputs, True)
        for number in range(first, last):
            step = self._steps[number]
            name = f"{'backward' if first else 'forward'} {Kind(step.kind).name.lower()}"
            if step.kind in (Kind.CONV, Kind.WEIGHT_GRADIENT):
                name += " " + "x".join(
                    map(str, (*step.stride, step.out.width if step.kind == Kind.CONV else step.add.width))
                )
            taken[name] += seconds[number]
            work[name] += 2 * multiply_adds(step, self.images, self._struct.spread)
        return seconds

    TrainingProgram._call = timed
    try:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        whole = sum(seconds(training.step) for _ in range(steps))
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    finally:
        TrainingProgram._call = plain
    for name, each in taken.most_common(16):
        speed = f"  {work[name] / each / 1e9:5.1f} GFLOP/s" if work[name] else ""
        print(f"      {name:<34} {each / steps * 1e3:8.2f} ms  {each / whole:5.1%} of a step{speed}")
    rest = whole - sum(taken.values())
    print(f"      {'outside the kernels':<34} {rest / steps * 1e3:8.2f} ms  {rest / whole:5.1%} of a step")
    print(f"      {faults / steps:.0f} page faults a step")


def multiply_adds(step, images: int, spread: int) -> int:
    """Of a step on its active weights, for a batch."""
    from cigl.runtime.program.steps import Kind

    if step.kind not in (Kind.CONV, Kind.WEIGHT_GRADIENT):
        return 0
    view = step.out if step.kind == Kind.CONV else step.add
    rows = ctypes.cast(step.rows, ctypes.POINTER(ctypes.c_int32))
    return images * rows[step.blocks * view.channels] * (view.height * view.width if spread == 1 else 1)


def one(name: str, sparsity: float | None, kernels: str, rounds: int, threads: int) -> float:
    """In a process of its own."""
    code = (
        f"import sys; sys.path.insert(0, {sys.path[0]!r}); import torch; torch.set_num_threads({threads}); "
        f"import training_speed as t; print(t.measure({{'one': t.Training({name!r}, {sparsity}, {kernels!r})}}, "
        f"{rounds}, 0.5)['one'])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory(name: str, sparsity: float | None, kernels: str) -> float:
    """Peak megabytes of a few steps, with a topology round among them, beyond what the process has before the first."""
    code = (
        f"import sys, resource; sys.path.insert(0, {sys.path[0]!r}); import torch; torch.set_num_threads(1); "
        f"import training_speed as t; r = t.Training({name!r}, {sparsity}, {kernels!r}); "
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024; before = peak(); "
        "[r.step() for _ in range(3)]; r.sparse and r.to_round(); [r.step() for _ in range(2)]; print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", nargs="*", default=list(FLOORS), choices=list(FLOORS))
    parser.add_argument("--sparsity", nargs="*", type=float, default=[0.8, 0.9, 0.95, 0.99])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--masked", action="store_true", help="also against masked training")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    for name in arguments.case:
        for sparsity in arguments.sparsity:
            if arguments.memory:
                dense, sparse = memory(name, None, "masked"), memory(name, sparsity, "auto")
                print(f"{name:<12} {sparsity:.0%}: {sparse:.0f} MB, {sparse / dense:.2f} of dense", flush=True)
                continue
            if arguments.threads > 1:
                dense = one(name, None, "masked", arguments.rounds, arguments.threads)
                sparse, alone = (one(name, sparsity, "auto", arguments.rounds, t) for t in (arguments.threads, 1))
                print(f"{name:<12} {sparsity:.0%}: {arguments.threads} threads {dense / sparse:5.2f}x dense, "
                      f"{alone / sparse:.2f}x one thread", flush=True)  # fmt: skip
                continue
            trainings = {"dense": Training(name, None, "masked"), "sparse": Training(name, sparsity, "auto")}
            if arguments.masked:
                trainings["masked"] = Training(name, sparsity, "masked")
            taken = measure(trainings, arguments.rounds, 0.3)
            ratio, floor = taken["dense"] / taken["sparse"], FLOORS[name].get(sparsity)
            floored = "" if floor is None else f" (floor {floor})"
            masked = f", {taken['masked'] / taken['sparse']:.2f}x masked" if "masked" in taken else ""
            print(f"{name:<12} {sparsity:.0%}: {taken['sparse'] * 1e3:8.2f} ms, {ratio:5.2f}x dense{floored}{masked}",
                  flush=True)  # fmt: skip
            if arguments.profile:
                profile(trainings["sparse"])


if __name__ == "__main__":
    main()
