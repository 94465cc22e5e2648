"""Sparse training in the ``Trainer`` of Transformers: ``Trainer(..., callbacks=[CigLCallback(sparsity=0.9)])``."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from cigl.common import tensors
from cigl.common.errors import CiglError, CiglWarning
from cigl.integrations.session import Session
from cigl.sparsify.methods.averaging import RunningMean
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.results.batch_norm import Forward
from cigl.sparsify.sparsifier import Sparsifier

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import has_length
except ImportError as error:
    raise ImportError(
        "cigl.integrations.transformers needs Transformers and Accelerate: pip install 'cigl[transformers]'."
    ) from error

FILE = "cigl.safetensors"  # in each checkpoint's folder


class CigLCallback(TrainerCallback):  # type: ignore[misc]
    """Trains the model of a ``Trainer`` sparse, and leaves ``trainer.model`` with the final weights.

    It attaches when training begins, to the trainer's own optimizer and for its number of optimizer steps; saves its
    state into each checkpoint and resumes from it; logs density, explored share and drop fraction with the loss. With
    ``load_best_model_at_end`` the result is the checkpoint that scored best, as it was evaluated, not an average.

    "cigl-auto" observes the trainer's ``eval_dataset`` at the end of each epoch.

    Args:
        method: A name from ``cigl.methods()``, or one's own, as for ``cigl.attach``.
        forward: ``forward(model, batch)`` runs one training batch where ``model(**batch)`` is not what is needed; used
            to re-estimate batch-norm statistics.
        options: ``sparsity`` and the other options of ``cigl.attach``. ``steps_per_epoch``, the interval of the
            snapshots that are averaged, is an epoch or a 25th of training, whichever is shorter, unless given.

    >>> from cigl.integrations.transformers import CigLCallback
    >>> CigLCallback("rigl", sparsity=0.9, layers={"*classifier*": False}).sparse is None
    True
    """

    def __init__(self, method: str | Method = "cigl", *, forward: Forward | None = None, **options: Any):
        self._session = Session(method, options)
        self._forward = forward
        self._trainer: Trainer | None = None
        self._folder = Path()
        self._epoch = 1  # in optimizer steps

    @property
    def sparse(self) -> Sparsifier | None:
        """The sparsifier, while training."""
        return self._session.sparse

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._trainer, checkpoint, trial = _caller()
        self._folder = Path(self._trainer._get_output_dir(trial))
        epoch = state.max_steps
        if has_length(given["train_dataloader"]):
            epoch = -(-len(given["train_dataloader"]) // args.gradient_accumulation_steps)
        self._epoch = epoch
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])  # inside Accelerate's
        sparse = self._session.begin(given["model"], optimizer, state.max_steps, epoch, _load(checkpoint))
        if args.load_best_model_at_end:
            self._check_best(sparse)
        _move_to_front(self._trainer, self)

    def _check_best(self, sparse: Sparsifier) -> None:
        if sparse.method.starts_dense and sparse.settings["sparsity"]:
            self._session.stop()
            raise CiglError(
                f"{sparse.method.name} prunes as it trains, so the best checkpoint may be one with too few zeros: set "
                "load_best_model_at_end=False."
            )
        if isinstance(sparse.collection, RunningMean):
            message = (
                "load_best_model_at_end keeps the checkpoint that scored best, as it was evaluated, so nothing is "
                f"averaged: leave it out for {sparse.method.name}'s average."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """At the end of an epoch, before a checkpoint may be saved."""
        assert self._trainer is not None
        if self._trainer.eval_dataset is not None and not state.global_step % self._epoch:
            self._session.observe(self._trainer.get_eval_dataloader(), self._forward)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if self.sparse is None or "loss" not in given["logs"]:
            return
        numbers = self._session.numbers()
        given["logs"].update(numbers)  # for the callbacks that report: they come after this one
        state.log_history[-1].update(numbers)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if self.sparse is not None and args.should_save:
            tensors.save(self._folder / f"checkpoint-{state.global_step}" / FILE, self.sparse.state_dict())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        assert self._trainer is not None
        trainer, self._trainer = self._trainer, None
        _remove_autocast(trainer)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._session.stop()  # the trainer has loaded its weights, and with them its zeros
        else:
            self._session.finish(given["train_dataloader"], self._forward)


def _caller() -> tuple[Trainer, str | None, Any]:
    """The trainer that is calling, the checkpoint that it resumes from, and its trial in a search.

    ``Trainer`` hands its callbacks none of them: they are read from ``Trainer.train`` on the call stack.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals
        if frame.f_code.co_name == "train" and isinstance(found.get("self"), Trainer):
            return found["self"], found.get("resume_from_checkpoint"), found.get("trial")
        frame = frame.f_back
    raise CiglError("CigLCallback is for transformers.Trainer: in a loop of your own call cigl.attach.")


def _load(checkpoint: str | None) -> Any:
    if checkpoint is None:
        return None
    file = Path(checkpoint) / FILE
    if not file.exists():
        raise CiglError(
            f"{checkpoint} was saved without CigLCallback: to start from its weights, load them into the model and "
            "train without resume_from_checkpoint."
        )
    return tensors.load(file)


def _remove_autocast(trainer: Trainer) -> None:
    """Mixed precision has replaced the model's forward: without it the result is a plain module, to copy and pickle."""
    model = trainer.model
    if "_original_forward" in vars(model):
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        if model.forward.__func__ is type(model).forward:
            del model.forward
    vars(model).pop("_is_accelerate_prepared", None)  # so that another train() puts it back


def _move_to_front(trainer: Trainer, callback: TrainerCallback) -> None:
    """Before the callbacks that report, so that they see what is logged, saved and finished here."""
    callbacks = trainer.callback_handler.callbacks
    callbacks.remove(callback)
    callbacks.insert(0, callback)
