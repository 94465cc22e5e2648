"""Runs: the loop, its configuration, its folder."""

from typing import TYPE_CHECKING

from cigl.lazy import lazy_attributes
from cigl.train.config import PRESETS, Config, resolve

if TYPE_CHECKING:
    from cigl.train.run import evaluate_run, resume, train

__all__ = ["PRESETS", "Config", "evaluate_run", "resolve", "resume", "train"]

__getattr__, __dir__ = lazy_attributes(__name__, {"cigl.train.run": "evaluate_run resume train"})
