"""The search behind cigl-rise: candidates for the rate of Z, compared on validation images. Results: search.csv.

python evidence/search.py --candidate "straight 0.13, n-3" --setting mlp --sparsity 0.95 --seed 100

Neither the test images nor the training images of the final table are used: images are taken from number 20,000 of the
training images on, other ones for each seed, and 10,000 to validate from 30,000 on; seeds count from 100. MNIST-1D has
4,000 training examples, of which each seed draws 1,000 to validate. A run that search.csv has is not run again.

With --temperatures each run has more rows: the same network with temperatures that need no held-out data.
"""

from __future__ import annotations

import argparse
import csv
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy import optimize
from torch import Tensor, nn

import cigl.data
from cigl.calibrate import fit_temperature, mixup, predict
from cigl.calibrate.reports.classification import report
from cigl.data import Source
from cigl.sparsify.methods.catalogue import CigL
from cigl.sparsify.methods.schedule import Rise, Timetable, rise
from cigl.sparsify.parameters.layer import Layer
from cigl.train.config import Config, resolve
from cigl.train.trainer import Splits, Trainer

FILE = Path(__file__).with_name("search.csv")
CIFAR = {
    "dataset": "cifar10", "epochs": 20, "batch_size": 64, "augment": False, "weight_decay": 0.0005,
    "milestones": [0.34, 0.68], "gamma": 0.2, "update_every": 50,
}  # fmt: skip
SETTINGS: dict[str, tuple[str | None, dict[str, Any], int | None]] = {  # preset, keys, training images
    "mlp": ("fashion-mnist-mlp", {}, 9000),
    "mlp5": ("fashion-mnist-mlp", {"model": "mlp-200-200-100-100"}, 9000),
    "wrn10": (None, CIFAR | {"model": "wrn-10-1-half"}, 4500),
    "wrn16": (None, CIFAR | {"model": "wrn-16-1-half"}, 4500),
    "mnist1d": ("mnist1d-mlp", {}, None),
}


@dataclass(frozen=True, kw_only=True)
class Candidate(CigL):
    """``rate`` in all layers, or ``factor`` * (n - unmasked) / sqrt(n) / L in a layer, at most 50 %."""

    name: str = "candidate"
    random_mask: float | Rise | None = 0.1  # that there is one; mask_rate says how large it is
    average_of: Literal["Z*W", "p*W"] | None = "p*W"
    final_weights: Literal["W", "p*W"] = "p*W"  # of finalize(average=False), which makes a snapshot
    snapshots_per_epoch: int | None = 4
    rate: float = 0.0
    factor: float = 0.0
    unmasked: float = 0.0
    begin: float = 0.0
    until: float = 0.75
    power: float = 1.0

    def mask_rate(self, layer: Layer, active: int, table: Timetable, step: int) -> float:
        end = self.rate
        if self.factor:
            n = max(active / layer.units, self.unmasked)
            end = min(0.5, self.factor * (n - self.unmasked) / math.sqrt(n) / layer.layers)
        share = rise(1.0, begin=self.begin, until=self.until)(step / table.steps)
        return end * math.pow(share, self.power)


CANDIDATES: dict[str, dict[str, Any]] = {
    "rigl": {"method": "rigl"},
    "cigl": {"method": "cigl"},
    "cigl 3 %": {"method": "cigl", "random_mask": 0.03},
    **{f"all layers {rate:.0%}": {"options": {"rate": rate}} for rate in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)},
    "straight 0.12": {"options": {"factor": 0.12}},
    "straight 0.16": {"options": {"factor": 0.16}},
    "straight 0.12 from 35 %": {"options": {"factor": 0.12, "begin": 0.35}},
    "straight 0.12 to 100 %": {"options": {"factor": 0.12, "until": 1.0}},
    "at once 0.12 at 60 %": {"options": {"factor": 0.12, "begin": 0.6, "until": 0.6}},
    "parabola 0.12": {"options": {"factor": 0.12, "power": 2.0}},
    "parabola 0.15": {"options": {"factor": 0.15, "power": 2.0}},
    "straight 0.13, n-3": {"options": {"factor": 0.13, "unmasked": 3.0}},  # cigl-rise
    "straight 0.13, n-3, again": {"options": {"factor": 0.13, "unmasked": 3.0}},  # by the code of the second round
    "straight 0.13, n-3, mixup 0.1": {"options": {"factor": 0.13, "unmasked": 3.0}, "mixup": 0.1},
    "straight 0.13, n-3, mixup 0.2": {"options": {"factor": 0.13, "unmasked": 3.0}, "mixup": 0.2},
    "straight 0.16, n-3": {"options": {"factor": 0.16, "unmasked": 3.0}},
    "straight 0.16, n-3, mixup 0.1": {"options": {"factor": 0.16, "unmasked": 3.0}, "mixup": 0.1},
}
TEMPERATURES = ("spread", "mixed 0.2", "mixed 1")
INPUTS = 2000  # training inputs that a temperature is fitted on


def configuration(candidate: str, setting: str, sparsity: float, seed: int) -> Config:
    preset, keys, _ = SETTINGS[setting]
    method = {"method": "search:Candidate"} | CANDIDATES[candidate]
    return resolve(keys | method | {"sparsity": sparsity, "seed": seed, "train_size": None}, preset=preset)


def splits(config: Config, images: int | None) -> Splits:
    """``Splits.test`` are validation images here."""
    source = cigl.data.open(config.dataset, seed=0)
    if images is None:
        train, validation = source.train.divide(0.25, seed=config.seed)
    else:
        first = 20_000 + 1000 * (config.seed - 100)
        if first + images > 30_000:
            raise ValueError(f"seed {config.seed} would learn from validation images")
        train = source.train.take(range(first, first + images))
        validation = source.train.take(range(30_000, 40_000))
    return Splits(Source(source.name, source.classes, source.shape, train, validation), train, None)


def run(candidate: str, setting: str, sparsity: float, seed: int, temperatures: bool) -> list[dict[str, Any]]:
    """The rows of one training: its network as it is, and at each temperature."""
    config = configuration(candidate, setting, sparsity, seed)
    trainer = Trainer(config, splits(config, SETTINGS[setting][2]))
    snapshots = []
    while trainer.epoch < config.epochs:
        for _ in trainer.steps():
            if temperatures and trainer.sparse.table.snapshots(trainer.sparse.step):
                snapshots.append(snapshot(trainer))
        trainer.finish_epoch()
    model = trainer.finalize()
    logits, labels = trainer.predict(model, "test")
    values = fitted(trainer, model, snapshots[1::2]) if temperatures else {}
    place = {"setting": setting, "sparsity": sparsity, "seed": seed, "candidate": candidate}
    rows = [place | judged(logits, labels)]
    for name, value in values.items():
        print(f"  {name}: T = {value:.4f}", flush=True)
        rows.append(place | {"candidate": named(candidate, name)} | judged(logits / value, labels))
    return rows


def judged(logits: Tensor, labels: Tensor) -> dict[str, str]:
    temperature = fit_temperature(logits=logits, labels=labels).value  # on these very images: flattering
    plain, scaled = (report(logits=logits.double() / t, labels=labels) for t in (1.0, temperature))
    numbers = {
        "accuracy": plain.accuracy, "ece_15": plain.ece_15, "nll": plain.nll, "temperature": temperature,
        "ece_15_scaled": scaled.ece_15, "nll_scaled": scaled.nll,
    }  # fmt: skip
    return {name: f"{float(value):.5f}" for name, value in numbers.items()}


def named(candidate: str, temperature: str) -> str:
    return f"{candidate}; T {temperature}"


def snapshot(trainer: Trainer) -> nn.Module:
    """p*W as it is now, with statistics of batch norm from a few batches of training data."""
    trained = trainer.splits.train
    batches = list(trained.take(range(1024)).batches(128)) if trainer.sparse.needs_loader else None
    return trainer.sparse.finalize(batches, average=False).eval()


def fitted(trainer: Trainer, model: nn.Module, snapshots: list[nn.Module]) -> dict[str, float]:
    """The temperatures that follow from training data alone."""
    inputs = trainer.splits.train.take(range(INPUTS))
    batches = list(inputs.batches(100))
    logits = predict(model, batches)[0]
    together = torch.stack([predict(each, batches)[0].softmax(1) for each in snapshots]).mean(0)
    values = {"spread": best_temperature(logits, together)}
    for alpha in (0.2, 1.0):
        random = np.random.default_rng(trainer.config.seed)
        pairs = [mixup(x, y, trainer.splits.source.classes, alpha=alpha, generator=random) for x, y in batches * 10]
        logits = torch.cat([predict(model, [(x, y.argmax(1))])[0] for x, y in pairs])
        values[f"mixed {alpha:g}"] = best_temperature(logits, torch.cat([y for _, y in pairs]))
    return values


def best_temperature(logits: Tensor, targets: Tensor) -> float:
    """With the lowest cross-entropy to rows of probabilities; fit_temperature takes labels."""
    found = optimize.minimize_scalar(
        lambda u: float(F.cross_entropy(logits.double() / math.exp(u), targets.double())),
        bounds=(-3, 3),
        method="bounded",
    )
    return math.exp(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", choices=CANDIDATES, action="append", required=True)
    parser.add_argument("--setting", choices=SETTINGS, action="append", required=True)
    parser.add_argument("--sparsity", type=float, action="append", required=True)
    parser.add_argument("--seed", type=int, action="append", required=True)
    parser.add_argument("--temperatures", action="store_true", help=f"also {', '.join(TEMPERATURES)}")
    wanted = parser.parse_args()
    warnings.simplefilter("ignore", cigl.CiglWarning)
    rows = list(csv.DictReader(FILE.open())) if FILE.is_file() else []
    done = {(row["candidate"], row["setting"], float(row["sparsity"]), int(row["seed"])) for row in rows}
    for seed in wanted.seed:
        for setting in wanted.setting:
            for sparsity in wanted.sparsity:
                for candidate in wanted.candidate:
                    names = [candidate, *(named(candidate, name) for name in TEMPERATURES if wanted.temperatures)]
                    if all((name, setting, sparsity, seed) in done for name in names):
                        continue
                    for row in run(candidate, setting, sparsity, seed, wanted.temperatures):
                        print(*row.values(), sep=", ", flush=True)
                        if (row["candidate"], setting, sparsity, seed) not in done:
                            rows.append(row)
                    with FILE.open("w", newline="") as file:
                        writer = csv.DictWriter(file, list(rows[0]))
                        writer.writeheader()
                        writer.writerows(rows)


if __name__ == "__main__":
    main()
