"""One run in memory: model, optimizer, sparsifier and place in the data; everything that a checkpoint holds.

The loop here is the model for users' own. Batches, augmentation, mixup and the learning rate are pure functions
of seed, epoch and step, so a checkpoint has to hold little more than where it stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cigl.data
import cigl.models
from cigl.calibrate import mixup, predict
from cigl.data import Source, Split
from cigl.errors import CiglError
from cigl.sparsify.attach import attach
from cigl.sparsify.methods import Method, method, options
from cigl.sparsify.schedule import CycleTimetable
from cigl.train.config import METHOD_KEYS, Config
from cigl.train.optim import build_optimizer, lr_factor

EVALUATION_BATCH = 500


@dataclass
class Splits:
    """The data of a run. The validation part is cut from the training data; the test data is never tuned on."""

    source: Source
    train: Split
    validation: Split | None

    @classmethod
    def of(cls, config: Config) -> Splits:
        source = cigl.data.open(config.dataset, seed=0)
        train, validation = source.train, None
        if config.train_size is not None:
            if not 0 < config.train_size <= len(train):
                raise CiglError(f"train_size is {config.train_size}, but {config.dataset} has {len(train)} examples.")
            train = train.take(torch.arange(config.train_size))
        if config.held_out:
            train, validation = train.divide(config.held_out, seed=config.seed if config.redraw else 0)
        if train.steps(config.batch_size, drop_last=True) == 0:
            raise CiglError(f"{len(train)} training examples make no batch of {config.batch_size}: lower batch_size.")
        return cls(source, train, validation)

    def split(self, name: str) -> Split:
        found = {"train": self.train, "validation": self.validation, "test": self.source.test}.get(name)
        if found is None:
            raise CiglError(f"this run has no {name} split: there is train, test and, with validation, validation.")
        return found


class Trainer:
    """A run that can be stepped, saved and loaded."""

    def __init__(self, config: Config, splits: Splits):
        self.config, self.splits = config, splits
        self.steps_per_epoch = splits.train.steps(config.batch_size, drop_last=True)
        torch.manual_seed(config.seed)
        self.device = _device(config.device)
        self.model = cigl.models.build(config.model, splits.source.classes, splits.source.shape).to(self.device)
        self.optimizer = build_optimizer(config, self.model)
        self.sparse = attach(
            self.model,
            self.optimizer,
            method_of(config),
            sparsity=config.sparsity,
            epochs=config.epochs,
            steps_per_epoch=self.steps_per_epoch,
            distribution=config.distribution,
            seed=config.seed,
            kernels=config.kernels,
        )
        factor = lr_factor(config, self.steps_per_epoch)
        cycles = isinstance(self.sparse.table, CycleTimetable)
        self.lr_factor = self.sparse.learning_rate(factor) if cycles else factor
        self.epoch = 0  # finished ones
        self.batch = 0  # ... and of the one under way
        self.sums = [0.0, 0, 0]  # loss, right, seen
        self.seconds = 0.0  # that the epoch under way has taken, before a resume too
        self.lr = config.lr  # of the last step

    @property
    def step(self) -> int:
        return self.epoch * self.steps_per_epoch + self.batch

    def steps(self) -> Iterator[None]:
        """Train the rest of the epoch under way, a step at a time."""
        self.model.train()
        for x, y in self._training_batches(self.epoch, self.batch):
            self._step(x, y)
            self.batch += 1
            yield

    def _training_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        config = self.config
        return self.splits.train.batches(
            config.batch_size,
            seed=config.seed,
            epoch=epoch,
            shuffle=True,
            augment=config.augment,
            drop_last=True,
            start=start,
            device=self.device,
            workers=config.workers,
        )

    def _step(self, x: Tensor, y: Tensor) -> None:
        config = self.config
        self.lr = config.lr * self.lr_factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        target = y
        if config.mixup:
            place = np.random.default_rng([config.seed, self.epoch, self.batch])
            x, target = mixup(x, y, self.splits.source.classes, alpha=config.mixup, generator=place)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # a third faster on a CPU
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.bf16):
            logits = self.model(x)
            loss = F.cross_entropy(logits, target, label_smoothing=config.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        value = loss.item()
        if not math.isfinite(value):
            raise CiglError(
                f"the loss is {value} in step {self.step + 1} (epoch {self.epoch + 1}): lower lr or set clip; the last "
                "checkpoint is from before."
            )
        self.optimizer.step()
        self.sums[0] += value * len(y)
        self.sums[1] += int((logits.argmax(1) == y).sum())
        self.sums[2] += len(y)

    def finish_epoch(self) -> dict[str, Any]:
        """The row of metrics of the epoch that has just been trained."""
        loss, right, seen = self.sums
        row: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.sparse.step,
            "loss": loss / seen,
            "accuracy": right / seen,
            "density": self.sparse.density,
            "explored": self.sparse.explored,
            "lr": self.lr,
        }
        if self.splits.validation is not None:
            logits, labels = self.predict(self.model, "validation")
            row["validation_loss"] = F.cross_entropy(logits, labels).item()
            row["validation_accuracy"] = (logits.argmax(1) == labels).float().mean().item()
        row["seconds"] = self.seconds
        self.epoch, self.batch, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0, 0], 0.0
        return row

    def predict(self, model: nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Logits and labels of a whole split."""
        batches = self.splits.split(split).batches(EVALUATION_BATCH, device=self.device, workers=self.config.workers)
        return predict(model, batches)

    def finalize(self) -> nn.Module:
        """The finished model; batch-norm statistics from training data where they must be re-estimated."""
        wanted = self.sparse.needs_loader or self.config.reestimate
        return self.sparse.finalize(self._training_batches(self.config.epochs) if wanted else None).eval()

    # Checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "digest": self._digest(),
            "epoch": self.epoch,
            "batch": self.batch,
            "sums": self.sums,
            "seconds": self.seconds,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "sparsifier": self.sparse.state_dict(),
            "generator": torch.get_rng_state(),
        }

    def _digest(self) -> str:
        """A run may resume with other kernels, on another machine."""
        return self.config.digest(without=("kernels",))

    def load(self, state: dict[str, Any]) -> None:
        if state["digest"] != self._digest():
            raise CiglError(
                "config.yaml is not the one that the checkpoint was made with: put it back, or train the changed "
                "configuration in a folder of its own."
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sparse.load_state_dict(state["sparsifier"])
        self.epoch, self.batch, self.sums = state["epoch"], state["batch"], list(state["sums"])
        self.seconds = state.get("seconds", 0.0)  # checkpoints of version 0.1.0 had none
        torch.set_rng_state(state["generator"])


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise CiglError(f"device {name!r} can't be used here ({str(error).splitlines()[0]}): try cpu.") from error


def method_of(config: Config) -> Method:
    """The method with the fields that the configuration sets."""
    keys = {name: getattr(config, name) for name in METHOD_KEYS}
    given = {name: value for name, value in keys.items() if value is not None}
    base = method(config.method)
    for name, _ in config.options:
        if getattr(base, name, None) is not None and name not in options(base):
            raise CiglError(f"option {name} of method {base.name!r} can't be set here: change it in Python.")
    return method(config.method, **given, **dict(config.options))
