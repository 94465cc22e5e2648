"""Sparse training in Lightning: ``Trainer(..., callbacks=[CigLCallback(sparsity=0.9)])``."""

from __future__ import annotations

import copy
import math
from itertools import chain
from typing import Any

from torch import nn

from cigl.common.batches import default_forward
from cigl.common.errors import CiglError
from cigl.integrations.session import Session
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.results.batch_norm import Forward
from cigl.sparsify.sparsifier import Sparsifier

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
except ImportError as error:
    raise ImportError("cigl.integrations.lightning needs Lightning: pip install 'cigl[lightning]'.") from error


class CigLCallback(Callback):  # type: ignore[misc]
    """Trains a ``LightningModule`` sparse, and leaves it with the final weights.

    It attaches when training starts, after Lightning has loaded a checkpoint, to the module's one optimizer and for the
    trainer's number of optimizer steps. Its state is saved in Lightning's checkpoints; ``fit(ckpt_path=...)`` resumes
    bit by bit. Density, explored share and drop fraction go to the trainer's loggers every ``log_every_n_steps`` steps.
    "cigl-auto" observes the trainer's validation data at the end of each epoch.

    Args:
        method: A name from ``cigl.methods()``, or one's own, as for ``cigl.attach``.
        steps: The number of optimizer steps, where the trainer can't know it: without an end, or with manual
            optimization that does not step once per batch.
        forward: ``forward(module, batch)`` runs one training batch where ``module(batch[0])`` is not what is needed;
            used to re-estimate batch-norm statistics, and on validation batches.
        options: ``sparsity`` and the other options of ``cigl.attach``. ``steps_per_epoch``, the interval of the
            snapshots that are averaged, is an epoch or a 25th of training, whichever is shorter, unless given.

    >>> from cigl.integrations.lightning import CigLCallback
    >>> CigLCallback("rigl", sparsity=0.9, layers={"head": False}).sparse is None
    True
    """

    def __init__(
        self,
        method: str | Method = "cigl",
        *,
        steps: int | None = None,
        forward: Forward | None = None,
        **options: Any,
    ):
        self._session = Session(method, options)
        self._steps = steps
        self._forward = forward
        self._loaded: dict[str, Any] | None = None  # from a checkpoint, until training starts
        self._logged = 0

    @property
    def sparse(self) -> Sparsifier | None:
        """The sparsifier, while training."""
        return self._session.sparse

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        # Neither an interrupted training nor a checkpoint that was loaded to validate or test is one to resume from.
        self._session.stop()
        self._loaded = None
        for other in trainer.callbacks:
            if isinstance(other, (StochasticWeightAveraging, WeightAveraging)):
                raise CiglError(
                    f"{type(other).__name__} averages weights while the masks change, which fills their zeros: leave "
                    "it out, and take a method that averages by itself, such as 'cigl'."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise CiglError(
                f"CigLCallback follows one optimizer, and this module has {len(trainer.optimizers)}: call cigl.attach "
                "for the part and the optimizer you mean, in on_train_start of the module."
            )
        epoch = trainer.num_training_batches / trainer.accumulate_grad_batches
        steps = self._number_of_steps(trainer)
        steps_per_epoch = steps if math.isinf(epoch) else math.ceil(epoch)
        state, self._loaded = self._loaded, None
        self._logged = 0
        before = copy.deepcopy(pl_module.state_dict()) if self._cannot_run(pl_module) else None
        sparse = self._session.begin(pl_module, trainer.optimizers[0], steps, steps_per_epoch, state)
        if before is not None and sparse.needs_loader:
            self._session.stop()
            pl_module.load_state_dict(before)
            raise CiglError(
                f"{type(pl_module).__name__} has batch norm, whose statistics are estimated again in the end, and no "
                "forward: say how a batch is run, for example CigLCallback(forward=lambda module, batch: "
                "module.net(batch[0]))."
            )

    def _cannot_run(self, module: LightningModule) -> bool:
        return self._forward is None and type(module).forward is LightningModule.forward

    def _number_of_steps(self, trainer: Trainer) -> int:
        steps = self._steps if self._steps is not None else trainer.estimated_stepping_batches
        if steps == float("inf") or steps < 1:
            raise CiglError(
                "the trainer has no end that is known in advance: give it max_steps or max_epochs, or "
                "CigLCallback(steps=...)."
            )
        return int(steps)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        sparse = self.sparse
        if batch_idx + 1 == trainer.num_training_batches and not self._cannot_run(pl_module):
            loaders = trainer.val_dataloaders  # before a checkpoint may be saved
            self._session.observe(chain(*loaders) if isinstance(loaders, (list, tuple)) else loaders, self._forward)
        if sparse is not None and sparse.step >= self._logged + trainer.log_every_n_steps:
            self._logged = sparse.step
            for logger in trainer.loggers:
                logger.log_metrics(self._session.numbers(), step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        forward = self._forward or default_forward

        def as_trained(module: nn.Module, batch: Any) -> Any:
            batch = trainer.precision_plugin.convert_input(trainer.strategy.batch_to_device(batch))
            with trainer.precision_plugin.forward_context():
                return forward(module, batch)

        self._session.finish(trainer.train_dataloader, as_trained)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.sparse is None else self.sparse.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.sparse is None:  # the optimizer is not there yet
            self._loaded = state
        else:  # a learning-rate finder in the middle of training returns to where it began
            self.sparse.load_state_dict(state)
