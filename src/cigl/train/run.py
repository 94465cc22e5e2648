"""A run from its configuration to its result, in its folder; to be killed and resumed at any moment."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import cigl
from cigl.calibrate import Ensemble, Report, TemperatureScaled, fit_temperature, report
from cigl.errors import CiglError, CiglWarning
from cigl.train import tensors
from cigl.train.board import tensorboard
from cigl.train.config import Config
from cigl.train.folder import RunFolder
from cigl.train.signals import Requests, listening
from cigl.train.trainer import Parts, Trainer

Progress = Callable[[Trainer, "dict[str, Any] | None"], None]
MASKS = 10  # drawn for MC dropout
PILOT_SEED = 0


def train(
    config: Config, out: Path | str, *, progress: Progress | None = None, checkpoint_minutes: float = 10.0
) -> dict[str, Any]:
    """Train in a new folder and return what ``result.json`` holds.

    ``progress(trainer, row)`` is called after every step (row None) and epoch (its metrics).
    """
    folder = RunFolder(out)
    with listening() as requests:
        _refuse_started(folder)
        trainer = Trainer(config, Parts.of(config))  # what is wrong shows before there is a folder
        requests.check()
        with folder.locked():
            _refuse_started(folder)
            folder.write_config(config)
            folder.write_json("versions.json", versions())
            return _continue(folder, trainer, requests, progress, checkpoint_minutes)


def _refuse_started(folder: RunFolder) -> None:
    if folder.is_started:
        path = folder.path
        raise CiglError(f"{path} already holds a run: resume it with --resume {path}, or choose another --out.")


def resume(out: Path | str, *, progress: Progress | None = None, checkpoint_minutes: float = 10.0) -> dict[str, Any]:
    """Go on where the run in this folder was stopped or killed; a finished run is only read."""
    folder = RunFolder(out)
    config = folder.read_config()
    if folder.is_finished:
        return dict(folder.read_json("result.json"))
    with listening() as requests, folder.locked():
        return _continue(folder, Trainer(config, Parts.of(config)), requests, progress, checkpoint_minutes)


def _continue(
    folder: RunFolder, trainer: Trainer, requests: Requests, progress: Progress | None, minutes: float
) -> dict[str, Any]:
    requests.check()
    config = trainer.config
    pilot = _pilot_temperature(folder, config, requests, progress, minutes) if config.temperature == "pilot" else None
    torch.manual_seed(config.seed)  # a pilot may have drawn numbers since
    state = folder.load_checkpoint()
    if state is not None:
        trainer.load(state)
    folder.cut_metrics(trainer.epoch)
    _train(trainer, folder, requests, progress, minutes * 60)
    return _finish(trainer, folder, pilot)


def _train(trainer: Trainer, folder: RunFolder, requests: Requests, progress: Progress | None, seconds: float) -> None:
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        folder.save_checkpoint(trainer.step, trainer.state())
        saved = time.monotonic()

    board = tensorboard(folder.path, trainer.epoch)
    while trainer.epoch < trainer.config.epochs:
        start = time.monotonic()
        for _ in trainer.steps():
            if progress is not None:
                progress(trainer, None)
            if requests.number is not None or time.monotonic() - saved > seconds:
                save()
                requests.check()
        row = trainer.finish_epoch(time.monotonic() - start)
        folder.add_metrics(row)
        save()
        board(row)
        if progress is not None:
            progress(trainer, row)
        requests.check()


def _finish(trainer: Trainer, folder: RunFolder, pilot: float | None) -> dict[str, Any]:
    model = trainer.finalize()
    tensors.save(folder.path / "model.safetensors", dict(model.state_dict()))
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
    logits, labels = trainer.predict(predictor, "test")
    reports = {"report": report(logits=logits, labels=labels)}
    if temperature is not None:
        reports["report-temperature"] = report(logits=logits.double() / temperature, labels=labels)
    for name, each in reports.items():
        each.to_json(folder.path / f"{name}.json")
    total = trainer.sparse.summary().total
    result = {
        "config": trainer.config.plain(), "digest": trainer.config.digest(), "versions": versions(),
        "temperature": temperature, "density": trainer.sparse.density, "explored": trainer.sparse.explored,
        "inference_flops": total.inference_flops, "training_flops": total.training_flops,
        "seconds": sum(row["seconds"] for row in folder.read_metrics()),
        "test": {name: each.to_dict()["metrics"] for name, each in reports.items()},
    }  # fmt: skip
    folder.write_json("result.json", result)
    return result


def predictor_of(trainer: Trainer, model: nn.Module, masks: int = MASKS) -> nn.Module:
    """What predicts for this method: the finished model, or the average over its members."""
    sparse = trainer.sparse
    if sparse.method.predicts_with == "weights":
        return model
    return Ensemble(sparse.members(None if sparse.method.keep_snapshots else masks)).eval()


def _pilot_temperature(
    folder: RunFolder, config: Config, requests: Requests, progress: Progress | None, minutes: float
) -> float:
    """Fitted on a tenth of the training data by a run on the other nine; one serves all seeds of a setting."""
    pilot = config.changed(temperature="holdout", seed=PILOT_SEED)
    place = RunFolder(folder.path.parent / "pilots" / pilot.digest())
    with place.locked(wait=True):
        if not place.is_started:
            place.write_config(pilot)
        if not place.is_finished:
            _continue(place, Trainer(pilot, Parts.of(pilot)), requests, progress, minutes)
        return float(place.read_json("result.json")["temperature"])


def evaluate_run(
    out: Path | str, *, split: str = "test", temperature: bool = False, masks: int | None = None
) -> Report:
    """The calibration report of a finished run, on any of its splits."""
    folder = RunFolder(out)
    config = folder.read_config()
    if not folder.is_finished:
        raise CiglError(f"the run in {out} is not finished: go on with `cigl train --resume {out}`.")
    trainer = Trainer(config, Parts.of(config))
    if masks is not None or trainer.sparse.method.predicts_with == "members":
        trainer.load(folder.last_checkpoint(config.epochs * trainer.steps_per_epoch))
    if masks is not None:
        predictor: nn.Module = Ensemble(trainer.sparse.members(masks)).eval()
    else:
        model = cigl.models.build(config.model, trainer.parts.source.classes, trainer.parts.source.shape)
        model.load_state_dict(tensors.load(folder.path / "model.safetensors"))
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


def versions() -> dict[str, str]:
    """What a number may depend on besides the configuration."""
    return {
        "cigl": cigl.__version__, "torch": torch.__version__, "numpy": np.__version__,
        "python": platform.python_version(), "machine": platform.machine(), "threads": str(torch.get_num_threads()),
    }  # fmt: skip
