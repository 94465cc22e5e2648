"""The search behind cigl-auto: controllers of the random mask's strength, compared on validation data. See auto.md.

python evidence/auto_search.py --task tabular-80 --candidate rigl --seed 100

Results are appended to auto_search.csv as each run ends; a run that it has is not run again.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import importlib
import inspect
import json
import math
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cigl
import cigl.data
from cigl.calibrate import fit_temperature
from cigl.sparsify.methods.catalogue import CigL
from cigl.sparsify.methods.schedule import Rise, rise
from cigl.sparsify.results.copies import plain_copy

FILE = Path(__file__).with_name("auto_search.csv")
COLUMNS = ("task", "candidate", "seed", "accuracy", "nll", "ece", "gap", "t", "nll_t", "ece_t", "path")

Data = tuple[Tensor, Tensor]


# Tasks: training data, validation data (those that judge), a network, an optimizer and its schedule


@dataclass
class Task:
    train: Data
    judge: Data
    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int
    sparsity: float
    batch: int = 64
    update_every: int = 50
    schedule: Any = None  # progress to factor
    parts: dict[str, Any] = field(default_factory=dict)


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def steps(progress: float) -> float:
    return 1.0 if progress < 0.5 else 0.2 if progress < 0.75 else 0.04


def cifar(seed: int) -> tuple[Data, Data]:
    source = cigl.data.open("cifar10", image_size=16)

    def images(first: int, count: int) -> Data:
        split = source.train.take(range(first, first + count))
        batches = list(split.batches(1000))
        return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])

    return images(30_000, 10_000), images(40_000, 10_000)


def cnn(width: int) -> nn.Module:
    w = width
    return nn.Sequential(
        nn.Conv2d(3, w, 3, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * w, 10),
    )  # fmt: skip


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def tabular(seed: int, n: int = 5000) -> tuple[Data, Data]:
    from sklearn.datasets import make_classification

    x, y = make_classification(n + 10_000, 40, n_informative=20, n_redundant=5, n_classes=20, n_clusters_per_class=1,
                               class_sep=1.5, flip_y=0.03, random_state=seed)  # fmt: skip
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    xs, ys = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return (xs[:n], ys[:n]), (xs[n:], ys[n:])


def digits(seed: int) -> tuple[Data, Data]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    kept = np.arange(len(y)) % 3 != 0
    xs, ys = torch.tensor(x[kept] / 16, dtype=torch.float32), torch.tensor(y[kept])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(ys)))
    xs, ys, n = xs[order], ys[order], len(ys) * 3 // 4
    return (xs[:n], ys[:n]), (xs[n:], ys[n:])


def mnist1d(seed: int) -> tuple[Data, Data]:
    split = cigl.data.open("mnist1d", seed=0).train
    batches = list(split.batches(1000))
    xs, ys = torch.cat([x for x, _ in batches]).flatten(1), torch.cat([y for _, y in batches])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(ys)))
    xs, ys = xs[order], ys[order]
    return (xs[:3000], ys[:3000]), (xs[3000:], ys[3000:])


MODULES = ("argparse", "decimal", "inspect", "ssl", "tarfile", "typing", "email.message", "http.client", "pickle",
           "datetime", "logging", "threading")  # fmt: skip


def text(seed: int, modules: tuple[str, ...] = MODULES, length: int = 64) -> tuple[Data, Data]:
    """Snippets by module; the first three quarters of each file train, the rest judges."""
    parts: list[list[tuple[list[int], int]]] = [[], []]
    draw = np.random.default_rng(seed)
    for label, name in enumerate(modules):
        source = importlib.import_module({"decimal": "_pydecimal", "datetime": "_pydatetime"}.get(name, name))
        try:
            whole = inspect.getsource(source)
        except OSError:
            continue
        cut = len(whole) * 3 // 4
        for place, (start, end, count) in enumerate([(0, cut, 400), (cut, len(whole), 250)]):
            for first in draw.integers(start, end - length, count):
                parts[place].append(([min(127, ord(c)) for c in whole[first : first + length]], label))
    sets = []
    for part in parts:
        order = draw.permutation(len(part))
        sets.append((torch.tensor([part[i][0] for i in order]), torch.tensor([part[i][1] for i in order])))
    return sets[0], sets[1]


class Transformer(nn.Module):
    def __init__(self, classes: int, width: int = 64, length: int = 64):
        super().__init__()
        self.letters, self.places = nn.Embedding(128, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.layers(h).mean(1))


def task(name: str, seed: int) -> Task:
    torch.manual_seed(seed)
    if name in ("cnn-5", "cnn-20"):
        model = cnn(32)
        return Task(*cifar(seed), model, torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01),
                    int(name[4:]), 0.9, schedule=cosine)  # fmt: skip
    if name == "cnn-60":
        model = cnn(32)
        return Task(*cifar(seed), model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4),
                    60, 0.9, schedule=steps, batch=128)  # fmt: skip
    if name == "wide-10":
        model = cnn(64)
        return Task(*cifar(seed), model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4),
                    10, 0.95, schedule=cosine, batch=64)  # fmt: skip
    if name == "digits-40":
        model = mlp(64, 128, 64, 10)
        return Task(*digits(seed), model, torch.optim.Adam(model.parameters(), 1e-3), 40, 0.9)
    if name == "tabular-15":
        model = mlp(40, 256, 128, 20)
        return Task(*tabular(seed), model, torch.optim.Adam(model.parameters(), 1e-3), 15, 0.9)
    if name == "tabular-80":
        model = mlp(40, 256, 128, 20)
        return Task(*tabular(seed), model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 80, 0.9,
                    schedule=steps)  # fmt: skip
    if name == "mnist1d-60":
        model = mlp(40, 200, 100, 10)
        return Task(*mnist1d(seed), model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 60, 0.9,
                    schedule=steps)  # fmt: skip
    if name == "text-10":
        model = Transformer(len(MODULES))
        return Task(*text(seed), model, torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01), 10, 0.8,
                    schedule=cosine)  # fmt: skip
    raise ValueError(name)


TASKS = ("tabular-15", "tabular-80", "digits-40", "mnist1d-60", "text-10", "cnn-5", "wide-10", "cnn-20", "cnn-60")


# Controllers


STRENGTH = [0.0]


@dataclass(frozen=True, kw_only=True)
class Auto(CigL):
    """The rates of cigl-rise times a strength; with ``flat`` they do not rise by themselves."""

    name: str = "auto"
    random_mask: float | Rise | None = rise(0.5, until=0.75)
    fan_in_factor: float | None = 0.13
    average_of: Any = "p*W"
    snapshots_per_epoch: int | None = 4

    def mask_rate(self, layer: Any, active: int, table: Any, step: int) -> float:
        return min(0.75, STRENGTH[0] * super().mask_rate(layer, active, table, step))


@dataclass
class Controller:
    gain: float = 2.0  # per epoch
    gain_length: float = 0.0  # in place of it, divided by the number of epochs
    band: float = 0.03
    z: float = 0.0  # standard errors that do not count either
    least_of: int = 1  # measurements, for growth
    smooth: float = 0.5
    warmup: int = 0  # epochs without growth
    lr_gate: float = 1.0  # no growth while the rate is above this share of its largest, unless constant
    top: float = 2.5
    flat: bool = False
    shrink: float = 1.0  # times the gain, where the gap is below the band's lower end
    low: float = 0.0  # below this gap the strength shrinks
    decay: float = 1.0

    strength: float = 0.0
    mean: float = 0.0
    seen: int = 0
    last: list[float] = field(default_factory=list)

    def update(self, gap: float, error: float, epoch: int, epochs: int, lr: float) -> None:
        self.seen += 1
        self.mean = gap if self.seen == 1 else self.mean + (1 - self.smooth) * (gap - self.mean)
        self.last = [*self.last, gap][-self.least_of :]
        gain = self.gain_length / epochs if self.gain_length else self.gain
        up = min(self.mean, *self.last) if self.least_of > 1 else self.mean
        excess = up - max(self.band, self.z * error)
        if excess > 0 and epoch > self.warmup and lr <= self.lr_gate and len(self.last) == self.least_of:
            self.strength += gain * excess
        elif self.mean < self.low:
            self.strength += gain * self.shrink * (self.mean - self.low)
            self.strength *= self.decay
        self.strength = min(self.top, max(0.0, self.strength))


BASELINES = {
    "rigl": ({"method": "rigl"}, False),
    "rigl 90 %": ({"method": "rigl"}, True),
    "averaged": ({"method": Auto(name="averaged")}, False),
    "averaged 90 %": ({"method": Auto(name="averaged")}, True),
    "cigl": ({"method": "cigl"}, False),
    "cigl-rise": ({"method": "cigl-rise"}, False),
    "cigl-rise 90 %": ({"method": "cigl-rise"}, True),
}
CONTROLLERS: dict[str, dict[str, Any]] = {
    "issue 1": {"gain_length": 150.0, "gain": 0, "band": 0.0},
    "issue 2": {"gain": 2.0, "band": 0.03},
    "flat": {"gain": 2.0, "band": 0.03, "flat": True},
    "least": {"gain": 2.0, "band": 0.02, "z": 2.0, "least_of": 3},
    "warm 10": {"gain": 2.0, "band": 0.02, "z": 1.0, "warmup": 10, "decay": 0.8},
    "warm 10 fast": {"gain": 4.0, "band": 0.02, "z": 1.0, "warmup": 10, "decay": 0.8},
    "warm 10 fast flat": {"gain": 4.0, "band": 0.02, "z": 1.0, "warmup": 10, "decay": 0.8, "flat": True},
    "least fast": {"gain": 4.0, "band": 0.02, "z": 1.0, "least_of": 3, "decay": 0.8},
    "gate": {"gain": 4.0, "band": 0.02, "z": 1.0, "lr_gate": 0.5, "decay": 0.8},
}


# One run


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(1000)])


def gap_of(logits: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean confidence minus accuracy, and its standard error."""
    confidence, label = logits.double().softmax(1).max(1)
    each = confidence - (label == y).double()
    return float(each.mean()), float(each.std() / math.sqrt(len(y)))


def ece_of(logits: Tensor, y: Tensor) -> float:
    return float(cigl.calibrate.report(logits=logits.double(), labels=y).ece_15)


def run(name: str, candidate: str, seed: int) -> dict[str, Any]:
    t = task(name, seed)
    x, y = t.train
    held: Data | None = None
    STRENGTH[0] = 0.0
    controller = None
    if candidate in BASELINES:
        options, holds = BASELINES[candidate]
        options = dict(options)
    else:
        controller, holds = Controller(**CONTROLLERS[candidate]), True
        mask: Any = 0.5 if controller.flat else rise(0.5, until=0.75)
        options = {"method": Auto(random_mask=mask)}
    if holds:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
        n = len(y) // 10
        held, (x, y) = (x[order[:n]], y[order[:n]]), (x[order[n:]], y[order[n:]])
    per_epoch = len(y) // t.batch
    every = min(t.update_every, max(1, int(per_epoch * t.epochs * 0.75 / 10)))
    sparse = cigl.attach(t.model, t.optimizer, options.pop("method"), sparsity=t.sparsity, epochs=t.epochs,
                         steps_per_epoch=per_epoch, update_every=every, seed=seed, **options)  # fmt: skip
    rates = [group["lr"] for group in t.optimizer.param_groups]
    generator, path = torch.Generator().manual_seed(seed), []
    images = x.dim() == 4
    for epoch in range(t.epochs):
        t.model.train()
        order = torch.randperm(len(y), generator=generator)
        for i in range(per_epoch):
            factor = t.schedule((epoch * per_epoch + i) / (t.epochs * per_epoch)) if t.schedule else 1.0
            for group, rate in zip(t.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            part = order[i * t.batch : (i + 1) * t.batch]
            batch = x[part]
            if images:
                flips = torch.rand(len(part), generator=generator) < 0.5
                batch = torch.where(flips.view(-1, 1, 1, 1), batch.flip(3), batch)
            loss = F.cross_entropy(t.model(batch), y[part])
            t.optimizer.zero_grad()
            loss.backward()
            t.optimizer.step()
        if held is not None:
            values = (
                {n: sparse._context.layers[k].weight * (1 - r) for k, (n, r) in enumerate(sparse.mask_rates.items())}
                if controller
                else {}
            )
            gap, error = gap_of(logits_of(plain_copy(t.model, values), held[0]), held[1])
            raw = gap_of(logits_of(plain_copy(t.model, {}), held[0]), held[1])[0]
            constant = t.schedule is None
            if controller:
                controller.update(gap, error, epoch + 1, t.epochs, 0.0 if constant else factor)
                STRENGTH[0] = controller.strength
            path.append([round(v, 4) for v in (gap, raw, STRENGTH[0])])
    loader = [(a, b) for a, b in zip(x.split(t.batch), y.split(t.batch), strict=True)]
    model = sparse.finalize(loader).eval()
    logits, labels = logits_of(model, t.judge[0]), t.judge[1]
    temperature = 1.0
    if held is not None:
        temperature = fit_temperature(logits=logits_of(model, held[0]), labels=held[1]).value
    numbers = {
        "accuracy": float((logits.argmax(1) == labels).double().mean()),
        "nll": float(F.cross_entropy(logits.double(), labels)),
        "ece": ece_of(logits, labels),
        "gap": gap_of(logits, labels)[0],
        "t": temperature,
        "nll_t": float(F.cross_entropy(logits.double() / temperature, labels)),
        "ece_t": ece_of(logits / temperature, labels),
    }
    row = {"task": name, "candidate": candidate, "seed": seed} | {k: f"{v:.5f}" for k, v in numbers.items()}
    return row | {"path": json.dumps(path)}


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(FILE.open())) if FILE.is_file() else []


def append(row: dict[str, Any]) -> None:
    with FILE.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, COLUMNS)
        if file.seek(0, 2) == 0:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append")
    parser.add_argument("--candidate", action="append")
    parser.add_argument("--seed", type=int, action="append")
    wanted = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in wanted.seed or (100, 101):
        for name in wanted.task or TASKS:
            for candidate in wanted.candidate or [*BASELINES, *CONTROLLERS]:
                if any((r["task"], r["candidate"], int(r["seed"])) == (name, candidate, seed) for r in rows()):
                    continue
                row = run(name, candidate, seed)
                append(row)
                print(*list(row.values())[:-1], json.loads(row["path"])[-1:], sep=", ", flush=True)


if __name__ == "__main__":
    main()
