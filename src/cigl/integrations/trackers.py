"""A run's numbers in TensorBoard, Weights & Biases and MLflow: each optional, each opened again by a resumed run.

A tracker gets scalars by step, the configuration, and at the end the report with its reliability diagram. What it needs
to go on with the same run is kept as plain values in ``state``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from cigl.common.errors import CiglError, unknown
from cigl.common.text import one_line

PROJECT = "cigl"  # unless the tracker's own variables name another
Scalars = Mapping[str, float]


class Tracker(Protocol):
    """``where`` says how to look at what was logged."""

    where: str

    def scalars(self, values: Scalars, step: int) -> None: ...

    def report(self, values: Scalars, step: int, files: Mapping[str, Path]) -> None:
        """Scalars, and files by name: text as .json or .txt, diagrams as .png."""

    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any], state: dict[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        if not state:
            rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
            self._writer.add_text("configuration", f"| key | value |\n|---|---|\n{rows}")
            state["folder"] = "tensorboard"
        self.where = f"tensorboard --logdir {folder / 'tensorboard'}"

    def scalars(self, values: Scalars, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a kill loses nothing that a resumed run would not log again

    def report(self, values: Scalars, step: int, files: Mapping[str, Path]) -> None:
        import numpy as np
        from PIL import Image

        self.scalars(values, step)
        for name, path in files.items():
            if path.suffix == ".png":
                with Image.open(path) as image:
                    self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
            elif path.suffix == ".txt":
                text = "\n".join(f"    {line}" for line in path.read_text("utf-8").splitlines())
                self._writer.add_text(name, text, step)

    def close(self, finished: bool) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases: where and how is up to its own variables (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, ...)."""

    def __init__(self, folder: Path, config: Mapping[str, Any], state: dict[str, Any]):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=state.get("id"),
            resume="allow" if state else None,
            dir=str(folder),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
            reinit="create_new",
        )
        state["id"] = self._run.id
        self.where = f"wandb sync {Path(self._run.dir).parent}" if self._run.offline else str(self._run.url)

    def scalars(self, values: Scalars, step: int) -> None:
        self._run.log(dict(values), step=step)

    def report(self, values: Scalars, step: int, files: Mapping[str, Path]) -> None:
        images = {name: self._wandb.Image(str(path)) for name, path in files.items() if path.suffix == ".png"}
        self._run.log({**values, **images}, step=step)
        self._run.summary.update(dict(values))

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """MLflow: its store is what MLFLOW_TRACKING_URI says, its experiment MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, folder: Path, config: Mapping[str, Any], state: dict[str, Any]):
        import mlflow
        from mlflow.entities import Metric, Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # a new store tells of its tables
        self._metric = Metric
        state.setdefault("uri", mlflow.get_tracking_uri())
        self._client = mlflow.MlflowClient(tracking_uri=state["uri"])
        if "run" in state:
            self._client.update_run(state["run"], status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            state["run"] = self._client.create_run(experiment, run_name=folder.name).info.run_id
            parameters = [Param(key, str(value)[:500]) for key, value in config.items()]
            self._client.log_batch(state["run"], params=parameters)
        self._run = state["run"]
        self.where = f"mlflow ui --backend-store-uri {state['uri']}"

    def scalars(self, values: Scalars, step: int) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def report(self, values: Scalars, step: int, files: Mapping[str, Path]) -> None:
        self.scalars(values, step)
        for path in files.values():
            self._client.log_artifact(self._run, str(path))

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


Maker = Callable[[Path, Mapping[str, Any], dict[str, Any]], Tracker]
TRACKERS: dict[str, Maker] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def names_of(text: str) -> tuple[str, ...]:
    """The trackers that --log or $CIGL_LOG names.

    >>> names_of("tensorboard, wandb"), names_of("none")
    (('tensorboard', 'wandb'), ())
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip() not in ("", "none")))


def check_trackers(names: tuple[str, ...]) -> None:
    """Whether they are known and installed; nothing is imported."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of that name, such as wandb leaves, is no library
            raise CiglError(f"{name} is not installed: pip install 'cigl[{name}]'.")


def open_tracker(name: str, folder: Path, config: Mapping[str, Any], state: dict[str, Any]) -> Tracker:
    try:
        return TRACKERS[name](folder, config, state)
    except Exception as error:  # of other people's libraries, which fail in many ways
        more = ": run `wandb login`, or set WANDB_MODE=offline" if name == "wandb" else ""
        raise CiglError(
            f"{name} can't log this run ({one_line(error)}){more}; without it, train with --log none."
        ) from error
