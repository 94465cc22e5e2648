"""A finished run as whoever uses its model needs it: from its folder alone, without its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cigl.data
import cigl.models
from cigl.calibrate import Report
from cigl.common import tensors
from cigl.common.errors import CiglError
from cigl.common.preprocessing import Preprocessing
from cigl.data import Source
from cigl.runtime.format.container import Damaged, is_shape
from cigl.runtime.format.entries import entries, read_entries
from cigl.runtime.remembered import remember
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder
from cigl.train.trainer import method_of

MODEL = "model.safetensors"


@dataclass(frozen=True)
class FinishedRun:
    """``shape`` is that of one input; ``preprocessing`` is None where inputs are not images."""

    config: Config
    model: nn.Module
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    preprocessing: Preprocessing | None
    temperature: float | None
    report: Report


def about_model(source: Source, temperature: float | None) -> dict[str, Any]:
    """What the file of the finished model says, so that `cigl export` and `cigl predict` need no data."""
    known = entries(source.class_names, source.preprocessing)
    return known | {"shape": list(source.shape), "temperature": temperature}


def finished_run(path: Path | str) -> FinishedRun:
    """The run in a folder, if it is finished and predicts with one model."""
    folder = RunFolder(path)
    config = folder.read_finished()
    if method_of(config).predicts_with == "members":
        raise CiglError(
            f"{config.method} predicts with the average over several models, which is neither exported nor used to "
            "predict files: take a run of another method, such as cigl."
        )
    file = folder.path / MODEL
    state, about = tensors.load_with_entries(file)
    shape, classes, preprocessing = _inputs(about, file) if "shape" in about else _of_dataset(config)
    model = cigl.models.build(config.model, len(classes), shape)
    model.load_state_dict(state)
    remember(model, (torch.zeros(2, *shape),))
    temperature = folder.read_json("result.json")["temperature"]
    report = Report.from_json(folder.path / ("report.json" if temperature is None else "report-temperature.json"))
    return FinishedRun(config, model.eval(), shape, classes, preprocessing, temperature, report)


Inputs = tuple[tuple[int, ...], tuple[str, ...], Preprocessing | None]


def _inputs(about: dict[str, Any], file: Path) -> Inputs:
    try:
        classes, preprocessing = read_entries(about)
    except Damaged as error:
        raise CiglError(f"{file} is damaged: {error}.") from error
    if classes is None or not about["shape"] or not is_shape(about["shape"]):
        raise CiglError(f"{file} is damaged: it does not say what its inputs and classes are.")
    return tuple(about["shape"]), classes, preprocessing


def _of_dataset(config: Config) -> Inputs:
    """Of a run of an earlier version, whose files do not say it."""
    source = cigl.data.open(config.dataset, image_size=config.image_size)
    return source.shape, source.class_names, source.preprocessing
