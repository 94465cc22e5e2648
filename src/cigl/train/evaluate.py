"""The model of a finished run, evaluated again: on any of its splits, with its temperature, over draws of its masks."""

from __future__ import annotations

import warnings
from pathlib import Path

from torch import nn

import cigl.models
from cigl.calibrate import Ensemble, Report, TemperatureScaled
from cigl.calibrate.reports.classification import report
from cigl.common import tensors
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.phases import phase
from cigl.train.folder.finished import MODEL
from cigl.train.folder.run_folder import RunFolder
from cigl.train.threads import recorded, threads_for, using
from cigl.train.trainer import Trainer, opened

MASKS = 10  # drawn for MC dropout


def has_members(trainer: Trainer) -> bool:
    """Whether the last checkpoint is of use beside the finished model: to draw masks, or for its snapshots."""
    return trainer.sparse.method.has_random_mask or trainer.sparse.method.keep_snapshots


def predictor_of(trainer: Trainer, model: nn.Module, masks: int = MASKS) -> nn.Module:
    """What predicts for this method: the finished model, or the average over its members."""
    sparse = trainer.sparse
    if sparse.method.predicts_with == "weights":
        return model
    return Ensemble(sparse.members(None if sparse.method.keep_snapshots else masks)).eval()


def evaluate_run(
    out: Path | str, *, split: str = "test", temperature: bool = False, masks: int | None = None
) -> Report:
    """The calibration report of a finished run.

    Args:
        out: The run's folder.
        split: Of the data: "test", "validation" or "train".
        temperature: With the run's temperature.
        masks: Average the predictions of so many random masks.
    """
    folder = RunFolder(out)
    config = folder.read_finished()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CiglWarning)  # on how it is trained: it was said then
        trainer = opened(config.changed(pretrained=None), check_images=False)
    with using(recorded(folder.read_json("result.json").get("versions", {})) or threads_for(trainer)):
        return _evaluate(folder, trainer, split, temperature, masks)


def _evaluate(folder: RunFolder, trainer: Trainer, split: str, temperature: bool, masks: int | None) -> Report:
    config, out = trainer.config, folder.path
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
            "the temperature was fitted on this data, so this report is too optimistic.", CiglWarning, stacklevel=2
        )
    if temperature:
        value = folder.read_json("result.json")["temperature"]
        if value is None:
            raise CiglError(f"the run in {out} has no temperature: train it with --temperature holdout or pilot.")
        predictor = TemperatureScaled(predictor, value)
    logits, labels = trainer.predict(predictor, split)
    with phase("computing confidence intervals"):
        return report(logits=logits, labels=labels)
