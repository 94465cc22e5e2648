"""Small tasks of many kinds for cigl-auto: its constants on validation data, then its test table. Notes: auto.md.

python evidence/auto_tasks.py                           # the search: all candidates, seeds 100 to 102
python evidence/auto_tasks.py --test                    # the test table: other data, seeds 0 to 4; once, at the end
python evidence/auto_tasks.py --task digits-40 --candidate rigl --seed 100
python evidence/auto_tasks.py --table [--test]          # means of what there is

Results are appended to auto_search.csv or auto_test.csv as each run ends; a run that is there is not run again.
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, make_classification
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cigl
import cigl.data
from cigl.calibrate import fit_temperature, report

HERE = Path(__file__).parent
COLUMNS = ("task", "candidate", "seed", "accuracy", "nll", "ece", "gap", "floor", "t", "nll_t", "ece_t", "path")
UNUSED = [*range(15_000, 20_000), *range(28_000, 30_000)]  # images of CIFAR-10, see unused.py

Data = tuple[Tensor, Tensor]


# Data: to train on, and to judge by (validation data, or with ``test`` what nothing else has looked at)


def cifar10(seed: int, test: bool) -> tuple[Data, Data]:
    return _images(range(30_000, 40_000)), _images(tuple(UNUSED) if test else range(40_000, 50_000))


@cache
def _images(numbers: Any) -> Data:
    return _joined(cigl.data.open("cifar10", image_size=16).train.take(list(numbers)))


def _joined(split: Any) -> Data:
    batches = list(split.batches(1000))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def tabular(seed: int, test: bool) -> tuple[Data, Data]:
    n = 5000
    x, y = make_classification(
        n + 10_000, 40, n_informative=20, n_redundant=5, n_classes=20, n_clusters_per_class=1, class_sep=1.5,
        flip_y=0.03, random_state=seed + 1000 * test,
    )  # fmt: skip
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    xs, ys = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return (xs[:n], ys[:n]), (xs[n:], ys[n:])


def digits(seed: int, test: bool) -> tuple[Data, Data]:
    """Every third example is for the test; of the others a quarter validates."""
    x, y = load_digits(return_X_y=True)
    xs, ys = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    kept = torch.arange(len(ys)) % 3 != 0
    if test:
        return (xs[kept], ys[kept]), (xs[~kept], ys[~kept])
    return _divided(xs[kept], ys[kept], int(kept.sum()) * 3 // 4, seed)


def mnist1d(seed: int, test: bool) -> tuple[Data, Data]:
    source = cigl.data.open("mnist1d", seed=1 if test else 0)  # other data for the test
    x, y = _joined(source.train)
    if test:
        inputs, labels = _joined(source.test)
        return (x.flatten(1), y), (inputs.flatten(1), labels)
    return _divided(x.flatten(1), y, 3000, seed)


def _divided(x: Tensor, y: Tensor, n: int, seed: int) -> tuple[Data, Data]:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    return (x[order[:n]], y[order[:n]]), (x[order[n:]], y[order[n:]])


MODULES = (
    "argparse", "_pydecimal", "inspect", "ssl", "tarfile", "typing", "pickle", "shutil", "logging", "threading",
)  # fmt: skip
OTHERS = (
    "configparser", "doctest", "difflib", "imaplib", "mailbox", "optparse", "platform", "pstats", "subprocess",
    "zipfile",
)  # fmt: skip


def text(seed: int, test: bool, length: int = 64) -> tuple[Data, Data]:
    """Snippets of Python's standard library by their module; the first three quarters of a file train."""
    parts: list[list[tuple[list[int], int]]] = [[], []]
    draw = np.random.default_rng(seed)
    for label, name in enumerate(OTHERS if test else MODULES):
        whole = inspect.getsource(importlib.import_module(name))
        cut = len(whole) * 3 // 4
        for part, (start, end, count) in zip(parts, [(0, cut, 400), (cut, len(whole), 250)], strict=True):
            for first in draw.integers(start, end - length, count):
                part.append(([min(127, ord(c)) for c in whole[first : first + length]], label))
    rows, others = ((torch.tensor([x for x, _ in part]), torch.tensor([y for _, y in part])) for part in parts)
    return rows, others


# Tasks


def cnn(width: int) -> nn.Module:
    w = width
    return nn.Sequential(
        nn.Conv2d(3, w, 3, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * w, 10),
    )  # fmt: skip


def mlp(*sizes: int) -> nn.Module:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Transformer(nn.Module):
    """Of two layers, for snippets of text."""

    def __init__(self, classes: int, width: int = 64, length: int = 64):
        super().__init__()
        self.letters, self.places = nn.Embedding(128, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        logits: Tensor = self.head(self.layers(h).mean(1))
        return logits


def constant(progress: float) -> float:
    return 1.0


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def stairs(progress: float) -> float:
    return 1.0 if progress < 0.5 else 0.2 if progress < 0.75 else 0.04


@dataclass(frozen=True)
class Task:
    data: Callable[[int, bool], tuple[Data, Data]]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    schedule: Callable[[float], float]
    epochs: int
    sparsity: float
    batch: int = 64


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 3e-3, weight_decay=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=5e-4)


TASKS = {
    "tabular-15": Task(tabular, lambda: mlp(40, 256, 128, 20), adam, constant, 15, 0.9),
    "tabular-80": Task(tabular, lambda: mlp(40, 256, 128, 20), sgd, stairs, 80, 0.9),
    "digits-40": Task(digits, lambda: mlp(64, 128, 64, 10), adam, constant, 40, 0.9),
    "mnist1d-60": Task(mnist1d, lambda: mlp(40, 200, 100, 10), sgd, stairs, 60, 0.9),
    "text-10": Task(text, lambda: Transformer(10), adamw, cosine, 10, 0.8),
    "cnn-5": Task(cifar10, lambda: cnn(32), adamw, cosine, 5, 0.9),
    "wide-10": Task(cifar10, lambda: cnn(64), sgd, cosine, 10, 0.95),
    "cnn-20": Task(cifar10, lambda: cnn(32), adamw, cosine, 20, 0.9),
    "cnn-60": Task(cifar10, lambda: cnn(32), sgd, stairs, 60, 0.9, 128),
}
TESTED = ("tabular-15", "tabular-80", "digits-40", "mnist1d-60", "text-10", "cnn-5")


# Candidates: a method, and whether a tenth of the training data is held out from it


def auto(**options: Any) -> tuple[cigl.Method, bool]:
    return cigl.method("cigl-auto", **options), True


CANDIDATES: dict[str, tuple[cigl.Method, bool]] = {
    "rigl": (cigl.method("rigl"), False),
    "rigl 90 %": (cigl.method("rigl"), True),
    "open loop": (cigl.method("cigl-auto"), False),
    "open loop 90 %": auto(gain=0.0),
    "cigl": (cigl.method("cigl"), False),
    "cigl-rise": (cigl.method("cigl-rise"), False),
    "cigl-rise 90 %": (cigl.method("cigl-rise"), True),
    "cigl-auto": auto(),
    "gain 2": auto(gain=2.0),
    "gain 8": auto(gain=8.0),
    "tolerance 0": auto(tolerance=0.0),
    "tolerance 0.04": auto(tolerance=0.04),
    "patience 0": auto(patience=0),
    "patience 5": auto(patience=5),
    "no rise": auto(random_mask=cigl.rise(0.5, until=0.0)),
    "no rise, gain 2": auto(random_mask=cigl.rise(0.5, until=0.0), gain=2.0),
}
FINAL = ("rigl", "rigl 90 %", "cigl", "cigl-rise", "cigl-auto")


# One run


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(1000)]).double()


def run(name: str, candidate: str, seed: int, test: bool) -> dict[str, Any]:
    task, (method, holds_out) = TASKS[name], CANDIDATES[candidate]
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    (x, y), judge = task.data(seed, test)
    held_out = None
    if holds_out:
        held_out, (x, y) = _divided(x, y, len(y) // 10, seed)
    steps, flips = len(y) // task.batch, x.dim() == 4
    sparse = cigl.attach(
        model, optimizer, method, sparsity=task.sparsity, epochs=task.epochs, steps_per_epoch=steps, seed=seed,
        update_every=min(50, max(1, steps * task.epochs * 3 // 40)), kernels="masked",
        validation=DataLoader(TensorDataset(*held_out), 1000) if held_out and method.controller() else None,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: task.schedule(t / (steps * task.epochs)))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(task.epochs):
        order = torch.randperm(len(y), generator=generator)
        for part in order[: steps * task.batch].split(task.batch):
            batch = x[part]
            if flips:
                flipped = torch.rand(len(part), generator=generator) < 0.5
                batch = torch.where(flipped.view(-1, 1, 1, 1), batch.flip(3), batch)
            loss = F.cross_entropy(model(batch), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    final = sparse.finalize(list(zip(x.split(task.batch), y.split(task.batch), strict=True))).eval()
    logits, labels = logits_of(final, judge[0]), judge[1]
    value = 1.0 if held_out is None else fit_temperature(logits=logits_of(final, held_out[0]), labels=held_out[1]).value
    plain, scaled = (report(logits=logits / t, labels=labels) for t in (1.0, value))
    numbers = {
        "accuracy": plain.accuracy, "nll": plain.nll, "ece": plain.ece_15, "gap": _gap(logits, labels),
        "floor": scaled.ece_15.floor, "t": value, "nll_t": scaled.nll,
        "ece_t": scaled.ece_15,
    }  # fmt: skip
    history = sparse.controller.history if sparse.controller else []
    path = json.dumps([[round(each.gap, 4), round(each.strength, 3)] for each in history])
    row = {"task": name, "candidate": candidate, "seed": seed}
    return row | {key: f"{float(number):.5f}" for key, number in numbers.items()} | {"path": path}


def _gap(logits: Tensor, labels: Tensor) -> float:
    confidence, predicted = logits.softmax(1).max(1)
    return float((confidence - (predicted == labels).double()).mean())


# Rows


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.open())) if file.is_file() else []


def append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", newline="") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        writer = csv.DictWriter(out, COLUMNS)
        if out.seek(0, 2) == 0:
            writer.writeheader()
        writer.writerow(row)


def show(file: Path) -> None:
    print(
        "| task | candidate | seeds | accuracy | NLL | ECE | T: NLL | ECE | floor |",
        "|---|---|---|---|---|---|---|---|---|",
        sep="\n",
    )
    found = rows(file)
    for task in TASKS:
        for candidate in CANDIDATES:
            mine = [row for row in found if (row["task"], row["candidate"]) == (task, candidate)]
            if mine:
                mean = {key: fmean(float(row[key]) for row in mine) for key in COLUMNS[3:-1]}
                print(
                    f"| {task} | {candidate} | {len(mine)} | {100 * mean['accuracy']:.1f} | {mean['nll']:.3f} | "
                    f"{100 * mean['ece']:.1f} | {mean['nll_t']:.3f} | {100 * mean['ece_t']:.1f} | "
                    f"{100 * mean['floor']:.1f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--candidate", choices=CANDIDATES, action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--test", action="store_true", help="on the test data")
    parser.add_argument("--table", action="store_true", help="show means, run nothing")
    wanted = parser.parse_args()
    file = HERE / ("auto_test.csv" if wanted.test else "auto_search.csv")
    if wanted.table:
        show(file)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in wanted.seed or (range(5) if wanted.test else (100, 101, 102)):
        for candidate in wanted.candidate or (FINAL if wanted.test else CANDIDATES):
            for name in wanted.task or (TESTED if wanted.test else TASKS):
                if any((r["task"], r["candidate"], r["seed"]) == (name, candidate, str(seed)) for r in rows(file)):
                    continue
                row = run(name, candidate, seed, wanted.test)
                append(file, row)
                print(*list(row.values())[:-1], sep=", ", flush=True)


if __name__ == "__main__":
    main()
