"""Runs: the loop, its configuration, its folder."""

from typing import TYPE_CHECKING

from cigl.lazy import lazy
from cigl.train.config import PRESETS, Config, resolve

if TYPE_CHECKING:
    from cigl.train.run import evaluate_run, resume, train

__all__ = ["PRESETS", "Config", "evaluate_run", "resolve", "resume", "train"]

__getattr__ = lazy(__name__, {"cigl.train.run": "evaluate_run resume train"})
