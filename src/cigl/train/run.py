"""A run from its configuration to its result, in its folder; to be killed and resumed at any moment."""

from __future__ import annotations

import platform
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import cigl
from cigl import tensors
from cigl.calibrate import Ensemble, Report, TemperatureScaled, fit_temperature
from cigl.calibrate.report import report
from cigl.errors import CiglError, CiglWarning
from cigl.train.config import TEMPERATURES, Config
from cigl.train.finished import MODEL, about_model
from cigl.train.folder import Busy, RunFolder
from cigl.train.ranks import ONE, Ranks
from cigl.train.shared_folder import folder_of
from cigl.train.signals import Requests, listening
from cigl.train.trainer import Splits, Trainer

Progress = Callable[[Trainer, "dict[str, Any] | None"], None]
MASKS = 10  # drawn for MC dropout
PILOT_SEED = 0


class Saving(NamedTuple):
    """When checkpoints are written, besides at the end."""

    minutes: float
    every_epoch: bool = True


def train(
    config: Config,
    out: Path | str,
    *,
    progress: Progress | None = None,
    checkpoint_minutes: float = 10.0,
    ranks: Ranks = ONE,
) -> dict[str, Any]:
    """Train in a new folder and return what ``result.json`` holds.

    ``progress(trainer, row)`` is called after every step (row None) and epoch (its metrics). ``ranks`` are those that
    train it together: every one of them calls this function, and rank 0 writes.
    """
    folder = folder_of(out, ranks)
    with listening() as requests:
        _refuse_started(folder)
        trainer = _trainer(config, ranks)  # what is wrong shows before there is a folder
        _check(requests, ranks)
        with folder.locked():
            _refuse_started(folder)
            _start(folder, trainer)
            return _continue(folder, trainer, requests, progress, Saving(checkpoint_minutes))


def _trainer(config: Config, ranks: Ranks) -> Trainer:
    splits = Splits.of(config)
    labels = {"training": splits.train.labels, "test": splits.source.test.labels}
    checksums = {f"the checksum of the {name} labels": zlib.crc32(each.numpy().data) for name, each in labels.items()}
    ranks.refuse_different(checksums)
    return Trainer(config, splits, ranks)


def _check(requests: Requests, ranks: Ranks) -> None:
    """Raise Stopped on every rank if one of them was asked to stop."""
    requests.number = ranks.largest(requests.number or 0) or None
    requests.check()


def _start(folder: RunFolder, trainer: Trainer) -> None:
    folder.write_json("versions.json", versions(trainer.ranks))
    folder.write_config(trainer.config)


def _refuse_started(folder: RunFolder) -> None:
    if folder.is_started:
        path = folder.path
        raise CiglError(f"{path} already holds a run: resume it with --resume {path}, or choose another --out.")


def resume(
    out: Path | str,
    *,
    progress: Progress | None = None,
    checkpoint_minutes: float = 10.0,
    kernels: str | None = None,
    ranks: Ranks = ONE,
) -> dict[str, Any]:
    """Resume the run in this folder where it was stopped or killed; a finished run is only read.

    With the same ``kernels`` (None: the run's own) and number of ``ranks`` it ends with the same bits as if it had
    never stopped.
    """
    folder = folder_of(out, ranks)
    config = folder.read_config()
    if folder.is_finished:
        return dict(folder.read_json("result.json"))
    if kernels is not None:
        config = config.changed(kernels=kernels)
    with listening() as requests, folder.locked():
        return _continue(folder, _trainer(config, ranks), requests, progress, Saving(checkpoint_minutes))


def complete(
    config: Config,
    out: Path | str,
    *,
    progress: Progress | None = None,
    checkpoint_minutes: float = 0.5,
    every_epoch: bool = False,
    ranks: Ranks = ONE,
) -> dict[str, Any]:
    """Whatever is left to do of this run: all of it, the rest or nothing. Busy if another process is at it."""
    with listening() as requests:
        return _complete(config, out, requests, progress, Saving(checkpoint_minutes, every_epoch), ranks)


def _complete(
    config: Config, out: Path | str, requests: Requests, progress: Progress | None, saving: Saving, ranks: Ranks
) -> dict[str, Any]:
    folder = folder_of(out, ranks)
    with folder.locked():
        if folder.is_finished:
            return dict(folder.read_json("result.json"))
        trainer = _trainer(config, ranks)
        if not folder.is_started:
            _take_training(folder, trainer)
            _start(folder, trainer)
        elif folder.read_config() != config:
            raise CiglError(f"{folder.path} holds a run of another configuration: remove it, or choose another place.")
        return _continue(folder, trainer, requests, progress, saving)


def _take_training(folder: RunFolder, trainer: Trainer) -> None:
    """From a finished run beside this one that differs in its temperature alone, and so has trained the same weights.

    Only where its last checkpoint was kept: then all that is left of this run is to predict.
    """
    config, last = trainer.config, trainer.config.epochs * trainer.steps_per_epoch
    others = [config.changed(temperature=kind) for kind in TEMPERATURES if kind != config.temperature]
    for other in others if trainer.ranks.size == 1 else ():  # several would have to agree on what they see
        beside = RunFolder(folder.path.parent / other.digest())
        if other.held_out != config.held_out or not beside.is_finished:
            continue
        if beside.read_json("versions.json") != versions() or not beside.has_checkpoint(last):
            continue
        folder.write_metrics(beside.read_metrics())
        folder.save_checkpoint(last, beside.checkpoint(last) | {"digest": trainer.digest()})
        return


def _continue(
    folder: RunFolder, trainer: Trainer, requests: Requests, progress: Progress | None, saving: Saving
) -> dict[str, Any]:
    _check(requests, trainer.ranks)
    config = trainer.config
    pilot = _pilot_temperature(folder, trainer, requests, progress, saving) if config.temperature == "pilot" else None
    trainer.seed_generator()  # a pilot may have drawn numbers since
    state = folder.load_checkpoint()
    if state is not None:
        trainer.load(state)
        _report_other_ranks(len(state.get("generators", [None])), trainer.ranks.size)
    folder.cut_metrics(trainer.epoch)
    _train(trainer, folder, requests, progress, saving)
    return _finish(trainer, folder, pilot)


def _report_other_ranks(before: int, now: int) -> None:
    if before != now:
        message = (
            f"this run was saved with {before} rank{'s' * (before > 1)} and is resumed with {now}: the batches are the "
            "same, but the last bits of its numbers are not, and batch norm sees other parts of a batch."
        )
        warnings.warn(message, CiglWarning, stacklevel=2)


def _train(trainer: Trainer, folder: RunFolder, requests: Requests, progress: Progress | None, saving: Saving) -> None:
    ranks, saved = trainer.ranks, time.monotonic()

    def save() -> None:
        nonlocal saved
        folder.save_checkpoint(trainer.step, trainer.state())
        saved = time.monotonic()

    epochs = trainer.config.epochs
    with folder.tensorboard(trainer.epoch) as board:
        while trainer.epoch < epochs:
            start = time.monotonic() - trainer.seconds
            for _ in trainer.steps():
                trainer.seconds = time.monotonic() - start
                if progress is not None:
                    progress(trainer, None)
                if ranks.largest(requests.number is not None or time.monotonic() - saved > saving.minutes * 60):
                    save()
                    _check(requests, ranks)
            row = trainer.finish_epoch()
            folder.add_metrics(row)
            if saving.every_epoch or trainer.epoch == epochs:
                save()
            board(row)
            if progress is not None:
                progress(trainer, row)
            if ranks.largest(requests.number is not None):
                save()
                _check(requests, ranks)


def _finish(trainer: Trainer, folder: RunFolder, pilot: float | None) -> dict[str, Any]:
    if not all(value.isfinite().all() for value in trainer.model.state_dict().values()):
        raise CiglError("the weights are not finite after the last step: lower lr or set clip, and train again.")
    model = trainer.finalize()
    predictor = predictor_of(trainer, model)
    temperature = pilot
    if trainer.config.temperature == "holdout":
        logits, labels = trainer.predict(predictor, "validation")
        fitted = fit_temperature(logits=logits, labels=labels)
        temperature = fitted.value
        if fitted.clamped:
            warnings.warn(
                "no finite temperature fits the validation data best; it was clamped.", CiglWarning, stacklevel=2
            )
    folder.write_tensors(MODEL, dict(model.state_dict()), about_model(trainer.splits.source, temperature))
    logits, labels = trainer.predict(predictor, "test")
    result = trainer.ranks.from_main(
        _write_result(trainer, folder, logits, labels, temperature) if trainer.ranks.is_main else None
    )
    folder.drop_checkpoints(keep=int(has_members(trainer)))  # the model is all that the others need
    return dict(result)


def _write_result(
    trainer: Trainer, folder: RunFolder, logits: Tensor, labels: Tensor, temperature: float | None
) -> dict[str, Any]:
    reports = {"report": report(logits=logits, labels=labels)}
    if temperature is not None:
        reports["report-temperature"] = report(logits=logits.double() / temperature, labels=labels)
    for name, each in reports.items():
        each.to_json(folder.path / f"{name}.json")
    summary = trainer.sparse.summary()
    total = summary.total
    result = {
        "config": trainer.config.plain(),
        "digest": trainer.config.digest(),
        "versions": versions(trainer.ranks),
        "temperature": temperature,
        "density": trainer.sparse.density,
        "explored": trainer.sparse.explored,
        "inference_flops": total.inference_flops,
        "training_flops": total.training_flops,
        "kernels": {"asked": trainer.config.kernels, "layers": {row.layer: row.kernels for row in summary.rows}},
        "seconds": sum(row["seconds"] for row in folder.read_metrics()),
        "test": {name: each.to_dict()["metrics"] for name, each in reports.items()},
    }
    folder.write_json("result.json", result)
    return result


def has_members(trainer: Trainer) -> bool:
    """Whether the last checkpoint is of use beside the finished model: to draw masks, or for its snapshots."""
    return trainer.sparse.method.has_random_mask or trainer.sparse.method.keep_snapshots


def predictor_of(trainer: Trainer, model: nn.Module, masks: int = MASKS) -> nn.Module:
    """What predicts for this method: the finished model, or the average over its members."""
    sparse = trainer.sparse
    if sparse.method.predicts_with == "weights":
        return model
    return Ensemble(sparse.members(None if sparse.method.keep_snapshots else masks)).eval()


def _pilot_temperature(
    folder: RunFolder, trainer: Trainer, requests: Requests, progress: Progress | None, saving: Saving
) -> float:
    """Fitted by a run on nine tenths of what this one trains on; one pilot serves all seeds of a setting."""
    config, ranks = trainer.config, trainer.ranks
    held_out = config.held_out + 0.1 * (1 - config.held_out)
    pilot = config.changed(temperature="holdout", seed=PILOT_SEED, validation=round(held_out, 12))
    place = folder.path.parent / "pilots" / pilot.digest()
    while True:
        _check(requests, ranks)
        try:
            return float(_complete(pilot, place, requests, progress, saving, ranks)["temperature"])
        except Busy:
            time.sleep(0.2)  # another run's process trains this pilot


def evaluate_run(
    out: Path | str, *, split: str = "test", temperature: bool = False, masks: int | None = None
) -> Report:
    """The calibration report of a finished run, on any of its splits."""
    folder = RunFolder(out)
    config = folder.read_config()
    if not folder.is_finished:
        raise CiglError(f"the run in {out} is not finished: resume it with `cigl train --resume {out}`.")
    trainer = Trainer(config, Splits.of(config))
    if has_members(trainer) and (masks is not None or trainer.sparse.method.predicts_with == "members"):
        trainer.load(folder.checkpoint(config.epochs * trainer.steps_per_epoch))
    if masks is not None:
        predictor: nn.Module = Ensemble(trainer.sparse.members(masks)).eval()
    else:
        model = cigl.models.build(config.model, trainer.splits.source.classes, trainer.splits.source.shape)
        model.load_state_dict(tensors.load(folder.path / MODEL))
        predictor = predictor_of(trainer, model.to(trainer.device).eval())
    if temperature and split == "validation":
        warnings.warn(
            "the temperature was fitted on this very split: its report is flattering.", CiglWarning, stacklevel=2
        )
    if temperature:
        value = folder.read_json("result.json")["temperature"]
        if value is None:
            raise CiglError(f"the run in {out} has no temperature: train it with --temperature holdout or pilot.")
        predictor = TemperatureScaled(predictor, value)
    logits, labels = trainer.predict(predictor, split)
    return report(logits=logits, labels=labels)


def versions(ranks: Ranks = ONE) -> dict[str, str]:
    """What a number may depend on besides the configuration."""
    several = {"ranks": str(ranks.size)} if ranks.size > 1 else {}  # not there: one, as in version 0.1.0
    return several | {
        "cigl": cigl.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }
