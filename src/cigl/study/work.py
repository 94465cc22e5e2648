"""One run of a study, wherever it is done: trained to its end, its masks drawn, its failure written down."""

from __future__ import annotations

import time
import traceback
from typing import Any, Literal

import torch

from cigl.common.errors import CiglError
from cigl.study.engine import Order, Outcome
from cigl.study.store import record_failure
from cigl.train.config import Config
from cigl.train.folder.run_folder import Busy, RunFolder
from cigl.train.ranks.group import ONE, Ranks
from cigl.train.ranks.rendezvous import is_lost_connection
from cigl.train.run import Execution, Progress, complete
from cigl.train.signals import Stopped
from cigl.train.trainer import Splits, Trainer


def do_order(order: Order, progress: Progress | None = None, ranks: Ranks = ONE) -> Outcome:
    """Do what is left of the run. Only a request to stop and the loss of a rank come out as exceptions."""
    start = time.monotonic()
    folder, config = RunFolder(order["path"]), Config.of(order["config"])
    state: Literal["done", "failed", "busy"] = "done"
    message = ""
    try:
        complete(config, folder.path, Execution(progress, ranks=ranks))
        if ranks.is_main:
            if order["masks"]:
                draw_masks(folder, config, order["masks"])
            (folder.path / "error.json").unlink(missing_ok=True)
    except Busy:
        state = "busy"
    except Stopped:
        raise
    except Exception as error:
        if ranks.size > 1 and is_lost_connection(error):
            raise
        state, message = "failed", f"{'' if isinstance(error, CiglError) else type(error).__name__ + ': '}{error}"
        if ranks.is_main:
            record_failure(folder, message, traceback.format_exc())
    return {"state": state, "message": message, "seconds": time.monotonic() - start}


def draw_masks(folder: RunFolder, config: Config, count: int) -> None:
    """Test accuracy of the final W, and of Z*W for ``count`` draws of Z (the paper's figure on their correlation)."""
    with folder.locked():
        if (folder.path / "masks.json").is_file() and len(folder.read_json("masks.json")["Z*W"]) >= count:
            return
        trainer = Trainer(config, Splits.of(config))
        if not trainer.sparse.method.has_random_mask:
            raise CiglError(f"method {config.method!r} has no random mask to draw: leave it out of a study with masks.")
        trainer.load(folder.checkpoint(config.epochs * trainer.steps_per_epoch))
        accuracies: dict[str, Any] = {"W": _accuracy(trainer, trainer.model)}
        accuracies["Z*W"] = [_accuracy(trainer, member) for member in trainer.sparse.members(count)]
        folder.write_json("masks.json", accuracies)


def _accuracy(trainer: Trainer, model: torch.nn.Module) -> float:
    logits, labels = trainer.predict(model.eval(), "test")
    return (logits.argmax(1) == labels).float().mean().item()
