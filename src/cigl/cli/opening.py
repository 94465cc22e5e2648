"""The model that a path names: a .cigl file, or the folder of a finished run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cigl.cli.shared import importing
from cigl.common.errors import CiglError

if TYPE_CHECKING:
    from torch import nn

    from cigl.common.preprocessing import Preprocessing


class Opened(NamedTuple):
    """A model with what one must know to use it; what a file doesn't say is None."""

    model: nn.Module
    shape: tuple[int, ...] | None  # of one input
    classes: tuple[str, ...] | None
    preprocessing: Preprocessing | None
    temperature: float | None


def opened(path: Path, fast: bool) -> Opened:
    """``fast``: on the sparse kernels, its logits divided by the temperature. Otherwise dense, and without it."""
    if not path.is_dir() and not path.is_file():
        raise CiglError(f"there is no {path}: give a .cigl file or the folder of a finished run.")
    with importing():
        import cigl
        from cigl.calibrate import TemperatureScaled
        from cigl.runtime.format.container import is_shape
        from cigl.runtime.format.entries import read_entries
        from cigl.train.folder.finished import finished_run

    if path.is_dir():
        done = finished_run(path)
        model = cigl.sparse_inference(done.model) if fast else done.model
        if fast and done.temperature is not None:
            model = TemperatureScaled(model, done.temperature).eval()
        return Opened(model, done.shape, done.classes, done.preprocessing, done.temperature)
    found = cigl.runtime.describe(path)
    classes, preprocessing = read_entries(found)
    about = found["about"]
    shape: Any = about.get("shape") if isinstance(about, dict) else None
    if preprocessing is not None:
        shape = list(preprocessing.shape)
    if not shape or not is_shape(shape) or math.prod(shape) >= 2**28:
        shape = None
    model = cigl.load(path) if fast else cigl.load(path, engine="dense", calibrated=False)
    return Opened(model, None if shape is None else tuple(shape), classes, preprocessing, found["temperature"])
