"""What cigl adds to a training step on a GPU: counted on a device of our own, not timed.

    python benchmarks/device_counts.py [--network NAME ...] [--method NAME ...] [--optimizer NAME ...] [--json]

Launches, bytes, reads by the host and copies from it: of an ordinary step and of a step with a topology round, against
the step of the dense network (counting_device.py says what is counted). The shapes of inputs are small, because
they don't change what cigl adds. The estimate is for an A100: 5 microseconds a launch and 1.5 TB/s, one after the
other, with nothing hidden behind anything else.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from counting_device import NAME, Counts, counting
from torch import Tensor, nn

import cigl
import cigl.models

LAUNCH, BANDWIDTH = 5e-6, 1.5e12  # seconds, bytes per second
EVERY = 20  # steps between rounds
ORDINARY = (18, 19)  # steps in which nothing is due, past the first ones that are watched
SPARSITY = 0.9
NUMBERS = ("operations", "launches", "bytes", "reads", "copies", "later")


class Tokens(nn.Module):
    """A model of Transformers from token ids to logits of the next one."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits[:, -1]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=4, n_head=2, attn_implementation="eager")
    return Tokens(GPT2LMHeadModel(config))


def images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: cigl.models.build("mlp-100-100", 10, (784,)), images(4, 784)),
    "wrn-22-2": (lambda: cigl.models.build("wrn-22-2", 10, (3, 32, 32)), images(2, 3, 16, 16)),
    "resnet50": (lambda: cigl.models.build("resnet50", 10, (3, 64, 64)), images(2, 3, 32, 32)),
    "gpt2": (gpt2, lambda: torch.randint(100, (2, 8))),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}
METHODS = ("rigl", "set", "cigl", "cigl-rise")


@dataclass(frozen=True)
class Loop:
    """How a step is taken."""

    optimizer: str = "sgd"
    micro_batches: int = 1
    autocast: bool = False
    scaler: bool = False


class Training:
    """A network on the counting device; without a method it is dense torch, and cigl has no part in it."""

    def __init__(self, network: str, method: str | None, loop: Loop):
        torch.manual_seed(0)
        build, make = NETWORKS[network]
        self.loop, self.model = loop, build().to(NAME)
        self.batches = [make().to(NAME) for _ in range(loop.micro_batches)]
        self.target = torch.zeros(len(self.batches[0]), dtype=torch.int64).to(NAME)
        self.optimizer = OPTIMIZERS[loop.optimizer](self.model.parameters())
        self.scaler = torch.amp.GradScaler(NAME, enabled=loop.scaler)
        self.layers, self.sparse = 0, None
        if method is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cigl.CiglWarning)
                self.sparse = cigl.attach(
                    self.model,
                    self.optimizer,
                    method,
                    sparsity=SPARSITY,
                    epochs=10,
                    steps_per_epoch=20,
                    update_every=EVERY,
                )
            self.layers = len(self.sparse.layers)

    def step(self) -> Counts:
        with counting() as counts:
            for x in self.batches:
                with torch.autocast(NAME, torch.bfloat16) if self.loop.autocast else nullcontext():
                    loss = F.cross_entropy(self.model(x), self.target)
                self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return counts


def count(network: str, method: str | None, loop: Loop) -> dict[str, Any]:
    """Of the ordinary steps the largest numbers, and of the step with a round."""
    training = Training(network, method, loop)
    if method is None:  # from the second step on, all are alike
        taken = [training.step() for _ in range(3)][-1:] * EVERY
    else:
        taken = [training.step() for _ in range(EVERY)]
    ordinary = [taken[number - 1] for number in ORDINARY]
    most = {name: max(getattr(counts, name) for counts in ordinary) for name in NUMBERS}
    round_ = {name: getattr(taken[-1], name) for name in NUMBERS}
    dense = 0 if training.sparse is None else sum(layer.is_dense for layer in training.sparse.layers)
    return {"layers": training.layers, "dense_layers": dense, "step": most, "round": round_, "ordinary": ordinary}


def seconds(step: dict[str, int]) -> float:
    return step["launches"] * LAUNCH + step["bytes"] / BANDWIDTH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--optimizer", nargs="+", choices=OPTIMIZERS, default=["sgd", "adamw"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for network in arguments.network:
        for optimizer in arguments.optimizer:
            loop = Loop(optimizer)
            dense = count(network, None, loop)["step"]
            for method in arguments.method:
                found = count(network, method, loop)
                added = {kind: {name: found[kind][name] - dense[name] for name in dense} for kind in ("step", "round")}
                rows.append(
                    {"network": network, "optimizer": optimizer, "method": method, "layers": found["layers"]}
                    | {"dense": dense, **added}
                )
    if arguments.json:
        print(json.dumps(rows))
        return
    print("added to the dense step: launches, MB, reads by the host and copies from it, and what that is on an A100")
    heads = ("network", "layers", "optimizer", "dense", "method", "launches", "MB", "reads", "copies", "ms")
    print(
        ("{:<9} {:>6} {:<11} {:>6}  {:<9}" + " {:>9}" * 5 + "   round: {:>8} {:>6} {:>6}").format(*heads, *heads[5:8])
    )
    for row in rows:
        step, turn = row["step"], row["round"]
        print(
            f"{row['network']:<9} {row['layers']:>6} {row['optimizer']:<11} {row['dense']['launches']:>6}  "
            f"{row['method']:<9} {step['launches']:>9} {step['bytes'] / 1e6:>9.1f} {step['reads']:>9} "
            f"{step['copies']:>9} {seconds(step) * 1e3:>9.2f}          {turn['launches']:>8} "
            f"{turn['bytes'] / 1e6:>6.0f} {turn['reads']:>6}"
        )


if __name__ == "__main__":
    main()
