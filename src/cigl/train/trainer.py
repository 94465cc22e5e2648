"""One run in memory: model, optimizer, sparsifier and place in the data; everything that a checkpoint holds.

The loop here is the model for users' own. Batches, augmentation, mixup and the learning rate are pure functions
of seed, epoch and step, so a checkpoint has to hold little more than where it stands.

Several ranks share each batch: every number that decides something is agreed on, so that all take the same way.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cigl.data
import cigl.models
from cigl.calibrate import mixup, predict
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.phases import phase
from cigl.common.text import listed
from cigl.data import Source, Split
from cigl.data.check import require_readable
from cigl.data.splits.split import WHOLE, Share
from cigl.models.pretrained import load_pretrained
from cigl.sparsify.attaching import attach
from cigl.sparsify.methods.averaging import RunningMean
from cigl.sparsify.methods.catalogue import Method, method, options
from cigl.sparsify.methods.schedule import CycleTimetable
from cigl.sparsify.results.batch_norm import running_norms
from cigl.train.config import METHOD_KEYS, Config
from cigl.train.cost import Cost
from cigl.train.gradients import averaging_gradients, explain
from cigl.train.optim import build_optimizer, lr_factor
from cigl.train.ranks.group import ONE, Ranks

_HELD_OUT, _ENOUGH = 0.1, 2000  # where a method observes held-out examples: a share, and how many are enough


@dataclass
class Splits:
    """The data of a run. The validation part is cut from the training data; the test data is never tuned on."""

    source: Source
    train: Split
    validation: Split | None

    @classmethod
    def of(cls, config: Config) -> Splits:
        own = config.redraw and cigl.data.images_at(config.dataset) is not None
        source = cigl.data.open(config.dataset, None, config.seed if own else 0, config.image_size, config.val_split)
        train, validation = source.train, None
        if config.train_size is not None:
            if not 0 < config.train_size <= len(train):
                raise CiglError(
                    f"train_size is {config.train_size}, but {config.dataset} has {len(train)} examples.",
                    arguments=("train_size",),
                )
            train = train.take(slice(config.train_size)) if config.subset == "first" else _drawn(config, source)
        held_out = config.held_out
        if not held_out and method_of(config).controller() is not None:
            held_out = min(_HELD_OUT, _ENOUGH / len(train))
        if held_out:
            train, validation = train.divide(held_out, seed=config.seed if config.redraw else 0)
        if train.steps(config.batch_size, drop_last=True) == 0:
            raise CiglError(
                f"{len(train)} training examples make no batch of {config.batch_size}: lower batch_size.",
                arguments=("batch_size",),
            )
        return cls(source, train, validation)

    def about(self) -> dict[str, Any]:
        """What a run's folder says of its data, so that another run or another day has the same."""
        prepared = self.source.preprocessing
        return {
            "classes": list(self.source.class_names),
            "shape": list(self.source.shape),
            "preprocessing": None if prepared is None else prepared.to_dict(),
            "train": len(self.train),
            "validation": 0 if self.validation is None else len(self.validation),
            "test": len(self.source.test),
        }

    def split(self, name: str) -> Split:
        found = {"train": self.train, "validation": self.validation, "test": self.source.test}.get(name)
        if found is None:
            raise CiglError(
                f"this run has no {name} data: choose train or test (or validation, for a run with --validation)."
            )
        return found


def _drawn(config: Config, source: Source) -> Split:
    """``train_size`` examples with the classes in their shares, of which a small one may be less than one example."""
    assert config.train_size is not None
    train = source.train.draw(config.train_size, config.seed)
    lost = np.setdiff1d(source.train.labels.numpy(), train.labels.numpy())
    if len(lost):
        warning = CiglWarning(
            f"of {config.train_size} training examples none are of {listed(source.class_names[k] for k in lost)}: "
            "raise train_size to have every class.",
            arguments=("train_size",),
        )
        warnings.warn(warning, stacklevel=2)
    return train


class Trainer:
    """A run that can be stepped, saved and loaded; with several ranks, this rank's part of it."""

    def __init__(self, config: Config, splits: Splits, ranks: Ranks = ONE):
        self.config, self.splits, self.ranks = config, splits, ranks
        _check_batch(config, ranks)
        self.steps_per_epoch = splits.train.steps(config.batch_size, drop_last=True)
        torch.manual_seed(config.seed)
        self.device = _device(config.device, ranks)
        self.model = cigl.models.build(config.model, splits.source.classes, splits.source.shape).to(self.device)
        if config.pretrained is not None:
            with phase(f"reading {config.pretrained}"):
                load_pretrained(self.model, Path(config.pretrained).expanduser())
        if ranks.size > 1 and self.device.type != "cpu":  # torch has none for the CPU
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.cost = Cost.of(self.model, splits.source.shape)
        self.optimizer = build_optimizer(config, self.model)
        self.sparse = attach(
            self.model,
            self.optimizer,
            method_of(config),
            sparsity=config.sparsity,
            epochs=config.epochs,
            steps_per_epoch=self.steps_per_epoch,
            distribution=config.distribution,
            initial="random" if config.pretrained is None else "magnitude",
            seed=config.seed,
            kernels=config.kernels,
        )
        self._network = averaging_gradients(self.model, self.device, ranks.size) if ranks.size > 1 else self.model
        factor = lr_factor(config, self.steps_per_epoch)
        cycles = isinstance(self.sparse.table, CycleTimetable)
        self.lr_factor = self.sparse.learning_rate(factor) if cycles else factor
        self.epoch = 0  # finished ones
        self.batch = 0  # ... and of the one under way
        self.sums = [0.0, 0, 0]  # loss, right, seen
        self.seconds = 0.0  # that the epoch under way has taken, before a resume too
        self.lr = config.lr  # of the last step
        self.last_loss = math.nan

    @property
    def step(self) -> int:
        return self.epoch * self.steps_per_epoch + self.batch

    def steps(self) -> Iterator[None]:
        """Train the rest of the epoch under way, a step at a time."""
        self.model.train()
        share = WHOLE if self.config.mixup else self.ranks.share  # an example's partner may be another rank's
        for x, y in self._training_batches(self.epoch, self.batch, share):
            self._step(x, y)
            self.batch += 1
            yield

    def _training_batches(self, epoch: int, start: int, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
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
            share=share,
        )

    def _step(self, x: Tensor, y: Tensor) -> None:
        config = self.config
        self.lr = config.lr * self.lr_factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        target = y
        if config.mixup:
            place = np.random.default_rng([config.seed, self.epoch, self.batch])
            mine = self.ranks.part(len(y))
            mixed = mixup(x, y, self.splits.source.classes, alpha=config.mixup, generator=place)
            x, target, y = mixed[0][mine], mixed[1][mine], y[mine]
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # a third faster on a CPU
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.bf16):
            logits = self._forward(x)
            loss = F.cross_entropy(logits, target, label_smoothing=config.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        total, right, seen = self.ranks.sum([loss.item() * len(y), int((logits.argmax(1) == y).sum()), len(y)])
        if not math.isfinite(total):
            raise CiglError(
                f"the loss is {total} in step {self.step + 1} (epoch {self.epoch + 1}): lower lr or set clip; the last "
                "checkpoint is from before.",
                arguments=("lr", "clip"),
            )
        self._average_statistics(self.model)
        self.optimizer.step()
        self.last_loss = total / seen
        self.sums = [self.sums[0] + total, self.sums[1] + int(right), self.sums[2] + int(seen)]

    def _forward(self, x: Tensor) -> Tensor:
        try:
            logits: Tensor = self._network(x)
        except RuntimeError as error:
            raise explain(error) from error
        return logits

    def _average_statistics(self, model: nn.Module) -> None:
        """Running statistics of batch norm are the means of what the ranks have, so that all evaluate one model."""
        statistics = [(norm.running_mean, norm.running_var) for norm in running_norms(model)]
        self.ranks.average([each for pair in statistics for each in pair if each is not None])

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
            controller = self.sparse.controller
            logits, labels = self.predict(self.model if controller is None else self.sparse.preview(), "validation")
            row["validation_loss"] = F.cross_entropy(logits, labels).item()
            row["validation_accuracy"] = (logits.argmax(1) == labels).float().mean().item()
            if controller is not None:
                self.sparse.observe(logits, labels)
                row |= {"mask_rate": self.sparse.mask_rate, "strength": controller.strength, "gap": controller.gap}
        row["seconds"] = self.seconds
        self.epoch, self.batch, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0, 0], 0.0
        return row

    def predict(self, model: nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Logits and labels of a whole split, to which each rank contributes its part."""
        mine = whole = self.splits.split(split)
        divides = 1 < self.ranks.size <= len(whole)  # of fewer samples than ranks, each predicts all
        if divides:
            mine = whole.take(self.ranks.part(len(whole)))
        with phase(f"evaluating on the {split} data"):
            batches = mine.batches(self.cost.evaluation_batch, device=self.device, workers=self.config.workers)
            logits, labels = predict(model, batches)
        return (self.ranks.concatenate(logits), self.ranks.concatenate(labels)) if divides else (logits, labels)

    def finalize(self) -> nn.Module:
        """The finished model; batch-norm statistics from training data where they must be re-estimated."""
        wanted = self.sparse.needs_loader or self.config.reestimate
        batches = self._training_batches(self.config.epochs, 0, self.ranks.share)
        name = "averaging the weights" if isinstance(self.sparse.collection, RunningMean) else "finishing the model"
        with phase(name + " and re-estimating batch norm" * wanted):
            model = self.sparse.finalize(batches if wanted else None).eval()
        if wanted:
            self._average_statistics(model)
        return model

    # Checkpoints

    def state(self) -> dict[str, Any]:
        state = {
            "digest": self.digest(),
            "epoch": self.epoch,
            "batch": self.batch,
            "sums": self.sums,
            "seconds": self.seconds,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "sparsifier": self.sparse.state_dict(),
            "generator": torch.get_rng_state(),
        }
        if self.ranks.size > 1:
            state["generators"] = self.ranks.generators()
        return state

    def digest(self) -> str:
        """Of what a checkpoint must fit: not of the kernels, nor of the file that the first weights came from."""
        return self.config.digest(without=("kernels", "pretrained"))

    def load(self, state: dict[str, Any]) -> None:
        if state["digest"] != self.digest():
            raise CiglError(
                "config.yaml is not the one that the checkpoint was made with: put it back, or train the changed "
                "configuration in a folder of its own."
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CiglError(
                f"the checkpoint is of another model than {self.config.model} makes now: {reason}"
            ) from error
        self.optimizer.load_state_dict(state["optimizer"])
        self.sparse.load_state_dict(state["sparsifier"])
        self.epoch, self.batch, self.sums = state["epoch"], state["batch"], list(state["sums"])
        self.seconds = state.get("seconds", 0.0)  # checkpoints of version 0.1.0 had none
        if self.step:
            self.lr = self.config.lr * self.lr_factor(self.step - 1)
        generators = state.get("generators", [state["generator"]])
        if self.ranks.rank < len(generators):
            torch.set_rng_state(generators[self.ranks.rank])

    def seed_generator(self) -> None:
        """Torch's global one, which dropout layers draw from; each rank has numbers of its own."""
        torch.manual_seed(self.config.seed + (self.ranks.rank << 32))


def opened(config: Config, ranks: Ranks = ONE, check_images: bool = True) -> Trainer:
    """The run's data and model, before its first step; the ranks must have the same data."""
    with phase(f"opening {config.dataset}"):
        splits = Splits.of(config)
    if check_images and splits.source.files is not None:
        with phase("checking the images"):
            require_readable(splits.source.files, config.workers, ranks.share)
    labels = {"training": splits.train.labels, "test": splits.source.test.labels}
    checksums = {f"the checksum of the {name} labels": zlib.crc32(each.numpy().data) for name, each in labels.items()}
    ranks.refuse_different(checksums)
    with phase("building the model"):
        return Trainer(config, splits, ranks)


def _check_batch(config: Config, ranks: Ranks) -> None:
    below = config.batch_size // ranks.size * ranks.size
    if config.batch_size != below:
        near = f"{below} or {below + ranks.size}" if below else f"{ranks.size}"
        raise CiglError(
            f"batch_size is {config.batch_size}, which {ranks.size} ranks can't divide into equal parts: take {near}.",
            arguments=("batch_size",),
        )


def _device(name: str, ranks: Ranks) -> torch.device:
    if ranks.size > 1 and name.startswith("cuda"):
        if name != "cuda":
            raise CiglError(
                f"device is {name}, but each rank needs one of its own: give device cuda.", arguments=("device",)
            )
        name = f"cuda:{ranks.on_node}"
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
