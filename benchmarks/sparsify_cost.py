"""What sparse training costs per step, counted in bare optimizer steps.

The bare step is SGD with momentum on the same parameters. A CigL step is everything that cigl adds to the
user's loop (Z on, gradients masked, Z off) and the optimizer's step itself; a topology update is what a
step with a round adds to that. For these the network's own forward and backward are left out: gradients are
put in place and what the hooks would report is reported by hand. The last column times whole training
steps, forward and backward and all, against the same without cigl. One thread; all variants interleaved in
one process, with freed memory kept; medians. Usage: python benchmarks/sparsify_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import cigl
from cigl.common.allocation import keep_freed_memory

ROUNDS = 60


def mlp() -> nn.Module:
    return cigl.models.build("mlp-1000-1000", 10, (784,))


def wrn_22_2() -> nn.Module:
    return cigl.models.build("wrn-22-2", 10, (3, 32, 32))


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Bare:
    """The optimizer's step alone."""

    def __init__(self, network: Callable[[], nn.Module]):
        torch.manual_seed(0)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.gradients = [torch.randn_like(p) * 1e-3 for p in self.model.parameters()]
        for p, g in zip(self.model.parameters(), self.gradients, strict=True):
            p.grad = g.clone()

    def prepare(self) -> None:
        for p, g in zip(self.model.parameters(), self.gradients, strict=True):
            assert p.grad is not None
            p.grad.copy_(g)

    def __call__(self) -> None:
        self.optimizer.step()


class Sparse(Bare):
    """The same with a method attached; a round every ``update_every`` steps."""

    def __init__(self, network: Callable[[], nn.Module], method: str, sparsity: float, update_every: int):
        super().__init__(network)
        self.sparse = cigl.attach(
            self.model,
            self.optimizer,
            method,
            sparsity=sparsity,
            epochs=1000,
            steps_per_epoch=1000,
            update_every=update_every,
        )

    def __call__(self) -> None:
        loop = self.sparse._loop
        loop.on_forward(self.model)
        for layer in self.sparse.layers:
            loop.on_dense_gradient(layer, layer.parameter.grad)
            loop.on_gradient(layer)
        self.optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("in bare optimizer steps (SGD with momentum, one thread, medians of interleaved runs)")
    heads = f"{'bare [ms]':>10} {'rigl step':>10} {'cigl step':>10} {'update':>8} {'whole step':>11}"
    print(f"{'network':<10} {'sparsity':>8} {heads}")
    for name, network, shape in (("mlp", mlp, (64, 784)), ("wrn-22-2", wrn_22_2, (128, 3, 32, 32))):
        for sparsity in (0.95, 0.8):
            runs: dict[str, Bare] = {
                "bare": Bare(network),
                "rigl": Sparse(network, "rigl", sparsity, 10**5),
                "cigl": Sparse(network, "cigl", sparsity, 10**5),
                "update": Sparse(network, "cigl", sparsity, 1),
            }
            times: dict[str, list[float]] = {key: [] for key in runs}
            for _ in range(ROUNDS):
                for key, run in runs.items():
                    run.prepare()
                    times[key].append(timed(run))
            ms = {key: statistics.median(values[5:]) * 1e3 for key, values in times.items()}
            bare = ms["bare"]
            print(
                f"{name:<10} {sparsity:>8} {bare:>10.3f} {ms['rigl'] / bare:>10.2f} {ms['cigl'] / bare:>10.2f} "
                f"{(ms['update'] - ms['cigl']) / bare:>8.2f} {whole_step(runs, shape):>10.3f}x"
            )
    print(f"topology update of 25 million weights at 95 %: {large_update():.3f} s (the slowest of 5)")


def whole_step(runs: dict[str, Bare], shape: tuple[int, ...]) -> float:
    """A training step with CigL over one without, forward and backward included."""
    x, y = torch.randn(shape), torch.randint(10, shape[:1])

    def step(run: Bare) -> None:
        run.optimizer.zero_grad()
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()

    rounds = 60 if len(shape) == 2 else 5
    times: dict[str, list[float]] = {"bare": [], "cigl": []}
    for _ in range(rounds + 1):
        for key, values in times.items():
            values.append(timed(partial(step, runs[key])))
    return statistics.median(times["cigl"][1:]) / statistics.median(times["bare"][1:])


def large_update() -> float:
    def network() -> nn.Module:
        return nn.Sequential(*(nn.Linear(2236, 2236, bias=False) for _ in range(5)))

    plain, update = Sparse(network, "cigl", 0.95, 10**5), Sparse(network, "cigl", 0.95, 1)
    times = []
    for _ in range(6):
        plain.prepare()
        without = timed(plain)
        update.prepare()
        times.append(timed(update) - without)
    return max(times[1:])  # the first step also makes the optimizer's state


if __name__ == "__main__":
    main()
