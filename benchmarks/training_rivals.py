"""Sparse training against other libraries, side by side, one thread: sparseprop (convolutions), SparseLab (an MLP).

Neither is a dependency: `pip install --no-deps sparseprop sparselab` first; what is missing is left out.
Forward and backward of single convolutions, the better of sparseprop's two modes; whole training steps of the MLP. All
are warm, and keep the memory that they free.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import cigl
from cigl.common.allocation import keep_freed_memory
from cigl.runtime.bench import warm_up

ROUNDS = 15


def interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    for call in calls.values():
        warm_up(call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def attached(model: nn.Module, sparsity: float, method: str, **options: object) -> tuple[nn.Module, torch.optim.SGD]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    lengths = {"epochs": 10, "steps_per_epoch": 1000}
    cigl.attach(model, optimizer, method, sparsity=sparsity, kernels="sparse", **lengths, **options)
    return model.train(), optimizer


def once(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        module.zero_grad()
        x.grad = None
        module(x).backward(gradient)

    return call


def convolutions() -> None:
    try:
        from sparseprop.modules import SparseConv2d
    except ImportError:
        print("sparseprop is not installed")
        return
    for channels, pixels in ((32, 32), (64, 16), (128, 8)):
        for sparsity in (0.9, 0.95, 0.99):
            torch.manual_seed(0)
            conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            x = torch.randn(64, channels, pixels, pixels, requires_grad=True)
            gradient = torch.randn(64, channels, pixels, pixels)
            ours, _ = attached(nn.Sequential(conv), sparsity, "static")
            dense = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
            calls = {"cigl": once(ours, x, gradient), "dense": once(dense, x, gradient)}
            for mode in (False, True):
                calls[f"sparseprop {mode}"] = once(SparseConv2d.from_dense(conv, mode), x, gradient)
            taken = interleaved(calls)
            rival = min(taken["sparseprop False"], taken["sparseprop True"])
            ratios = f"{taken['dense'] / taken['cigl']:.1f}x dense torch, {rival / taken['cigl']:.1f}x sparseprop"
            print(f"conv 3x3, {channels} channels, {pixels} px, {sparsity:.0%}: {ratios}", flush=True)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))

    def call() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return call


def mlp(linear: Callable[[int, int], nn.Module]) -> nn.Module:
    return nn.Sequential(linear(784, 1000), nn.ReLU(), linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))


def multilayer_perceptron() -> None:
    try:
        from sparselab.nn import SparseLinear
    except ImportError:
        print("sparselab is not installed")
        return
    for sparsity in (0.9, 0.95, 0.99):
        torch.manual_seed(0)
        theirs = mlp(lambda i, o: SparseLinear(i, o, sparsity=sparsity))  # noqa: B023
        dense = mlp(nn.Linear)
        optimizers = {
            "sparselab": (theirs, torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)),
            "dense": (dense, torch.optim.SGD(dense.parameters(), lr=0.01, momentum=0.9, fused=True)),
            "cigl": attached(mlp(nn.Linear), sparsity, "static", distribution="uniform", layers={"4.*": False}),
        }
        taken = interleaved({name: stepped(*pair) for name, pair in optimizers.items()})
        print(
            f"MLP step, {sparsity:.0%}: {taken['dense'] / taken['cigl']:.1f}x dense torch, "
            f"{taken['sparselab'] / taken['cigl']:.1f}x SparseLab",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_freed_memory()
    convolutions()
    multilayer_perceptron()
