"""Runs: the loop, its configuration, its folder."""

from typing import TYPE_CHECKING

from cigl.common.lazy import lazy_attributes
from cigl.train.config import PRESETS, Config, resolve

if TYPE_CHECKING:
    from cigl.train.evaluate import evaluate_run
    from cigl.train.run import resume, train

__all__ = ["PRESETS", "Config", "evaluate_run", "resolve", "resume", "train"]

__getattr__, __dir__ = lazy_attributes(
    __name__, {"cigl.train.evaluate": "evaluate_run", "cigl.train.run": "resume train"}
)
