"""What ``cigl.attach`` returns: the masks, the numbers and the results of a sparse training.

The training itself is in loop.py (the user's loop, as the hooks report it) and step.py (one step of Algorithm 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.notebook import paragraphs, table
from cigl.common.text import count
from cigl.sparsify.follow_sharding import Sharding
from cigl.sparsify.guards.agreement import Agreement
from cigl.sparsify.guards.checks import Checks
from cigl.sparsify.guards.unselected import Unselected
from cigl.sparsify.loop.binding import Binding
from cigl.sparsify.loop.context import Context
from cigl.sparsify.loop.detached import DetachedSparsifier
from cigl.sparsify.loop.kernels import NoKernels, make
from cigl.sparsify.loop.loop import Loop
from cigl.sparsify.methods.averaging import Collection
from cigl.sparsify.methods.controller import Controller
from cigl.sparsify.methods.schedule import CycleTimetable
from cigl.sparsify.results import checkpoint, finish
from cigl.sparsify.results.batch_norm import Forward, running_norms
from cigl.sparsify.results.ema import Averages, Ema
from cigl.sparsify.results.validation import Validation
from cigl.sparsify.summary import CallCounter, Summary, summarize


class Sparsifier:
    """What ``cigl.attach`` returns. The training loop drives it through hooks; this is for looking, and for results.

    Attributes:
        step: The number of optimizer steps that were applied.
        method: The method, as a ``cigl.Method``.

    >>> import torch, cigl
    >>> model = torch.nn.Linear(20, 5)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sparse = cigl.attach(model, optimizer, "rigl", sparsity=0.8, epochs=10, steps_per_epoch=20, update_every=10)
    >>> for _ in range(200):
    ...     loss = model(torch.randn(8, 20)).square().mean()
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    >>> sparse.step, sparse.density
    (200, 0.2)
    >>> final = sparse.finalize()
    >>> int(final.weight.count_nonzero())
    20
    """

    def __init__(self, context: Context, validation: Iterable[Any] | None = None):
        self.model, self.optimizer, self.layers = context.model, context.optimizer, context.layers
        self.method, self.table, self.settings = context.method, context.table, context.settings
        self.kernels = context.kind  # as they were asked for
        self._context = context
        self._unselected = Unselected(context.model, context.layers, context.settings["layers"])
        self._checks = Checks(context.model, context.layers, self._unselected)
        self._agreement = Agreement(context.layers, context.table)
        self._averages = Averages(context)
        self._sharding = Sharding(context, self._averages, self._was_sharded)
        self._validation = Validation(context, validation)
        self._loop = Loop(
            context,
            self._checks,
            self._agreement,
            self._sharding.before_change,
            moved=self._averages.update,
            ended=self._validation.after_step,
        )
        with ExitStack() as undo:  # all hooks, or none
            self._calls = CallCounter(context.model, context.layers)
            undo.callback(self._calls.remove)
            context.kernels = make(
                context.kind,
                context.model,
                context.layers,
                context.needs_dense_step,
                self._loop.torch_reads,
                self._calls.paused,
            )
            undo.callback(context.kernels.remove)
            self._binding = Binding(context.model, context.states.chain, context.layers, self._loop)
            undo.pop_all()

    # Looking

    @property
    def step(self) -> int:
        return self._context.step

    @property
    def collection(self) -> Collection | None:
        """What is collected near the end of training, where the method averages or keeps snapshots."""
        return self._context.collection

    @property
    def masks(self) -> dict[str, Tensor]:
        """M: parameter name to bool tensor, sharded as the parameter is."""
        return {layer.name: layer.whole(layer.mask) for layer in self.layers}

    @property
    def random_masks(self) -> dict[str, Tensor] | None:
        """Z, False where a weight is switched off, while it is in force; else None."""
        step = self._loop.step
        if step is None or not step.has_begun or not self.method.has_random_mask:
            return None
        return {layer.name: layer.whole(layer.random_mask) for layer in self.layers}

    @property
    def mask_rates(self) -> dict[str, float]:
        """The share of each layer's active weights that Z switched off in the last step: parameter name to number."""
        return self._context.mask_rates

    @property
    def mask_rate(self) -> float:
        """The share of all active weights that Z switched off in the last step."""
        return self._context.mask_rate

    @property
    def controller(self) -> Controller | None:
        """Of "cigl-auto": the strength of Z, the last gap between confidence and accuracy, and their history."""
        return self._context.controller

    @property
    def density(self) -> float:
        """Active weights over all selected weights."""
        return self._context.density

    @property
    def explored(self) -> float:
        """ITOP rate: the share of weights that were ever active."""
        return self._context.explored

    def summary(self) -> Summary:
        """A table per layer and in all; print it. Where active weights are zero, it counts both: active positions and
        non-zero weights. Where parameters are sharded, every process must ask for it."""
        self._context.check_modules()
        return summarize(self._context, self._calls.places)

    def learning_rate(self, before: Callable[[int], float] | None = None) -> Callable[[int], float]:
        """Sup-tickets' cycle as a function for ``LambdaLR`` that is stepped once per optimizer step.

        Args:
            before: Your own factor up to the first cycle, as a function of the step (1 if not given).
        """
        if not isinstance(self.table, CycleTimetable):
            raise CiglError(f"method {self.method.name!r} has no learning-rate cycle; 'sup-tickets' has.")
        return self.table.learning_rate(before)

    def __repr__(self) -> str:
        weights, active = (sum(values) for values in zip(*((x.size, x.target) for x in self.layers), strict=True))
        return (
            f"<Sparsifier {self.method.name}: step {self.step:,} of {self.table.steps:,}, "
            f"{count(active, 'weight')} of {weights:,} in {count(len(self.layers), 'layer')} "
            f"({100 - 100 * active / weights:.4g} % sparsity)>"
        )

    def _repr_html_(self) -> str:
        """What a process knows by itself: a ``summary`` of sharded parameters needs them all."""
        rows = [(x.name, "x".join(map(str, x.shape)), f"{x.target:,}", f"{x.target / x.size:.4f}") for x in self.layers]
        return paragraphs(repr(self).strip("<>")) + table(("layer", "shape", "weights", "density"), rows, texts=2)

    # Held-out examples

    def preview(self) -> nn.Module:
        """A plain copy with p*W, the expectation of Z*W: what "cigl-auto" would return if training ended here.

        Its batch-norm statistics are those of training. The attached model is not touched.
        """
        self._sharding.before_change()
        self._context.check_modules()
        return finish.preview(self._context)

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        """Held-out examples, from which "cigl-auto" learns how over-confident the network is.

        Args:
            logits: What ``preview()`` returns for them, (samples, classes). Those of the attached model are W's, which
                is more confident than p*W wherever there is a random mask.
            labels: Class numbers from 0.

        Call it with as many batches as there are, at the end of an epoch; the next epoch follows. Where several
        processes train the model, each observes the same examples, or a part of its own. Input that can't be used is
        refused, and the random mask stays as it was.

        >>> import torch, cigl
        >>> model = torch.nn.Linear(20, 5)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> sparse = cigl.attach(model, optimizer, "cigl-auto", sparsity=0.8, epochs=40, steps_per_epoch=20)
        >>> x, y = torch.randn(500, 20), torch.zeros(500, dtype=torch.long)
        >>> sparse.observe(sparse.preview()(x), y)
        """
        self._validation.observe(logits, labels)

    def validate(self, loader: Iterable[Any], forward: Forward | None = None) -> None:
        """Evaluate ``preview()`` on held-out examples and observe them, as ``attach(validation=loader)`` does.

        Args:
            loader: Yields (inputs, labels), or mappings with "labels"; labels of -100 are left out.
            forward: ``forward(model, batch)`` runs one batch, where the usual forms of a batch don't fit.
        """
        self._sharding.before_change()
        self._context.check_modules()
        self._validation.evaluate(loader, forward)

    # Results

    @property
    def needs_loader(self) -> bool:
        """Whether ``finalize`` must re-estimate batch-norm statistics, and so needs training data."""
        return finish.changes_weights(self._context) and bool(running_norms(self.model))

    def finalize(
        self,
        loader: Iterable[Any] | None = None,
        forward: Forward | None = None,
        average: bool = True,
        whole: bool = False,
    ) -> nn.Module:
        """A plain copy of the model with the method's final weights; the attached model stays as it is.

        Args:
            loader: Training data, to re-estimate batch-norm statistics. It is needed where the model has batch norm and
                the returned weights are not those it was trained with (``needs_loader``); given for another method, the
                statistics are still re-estimated. Of its first batch, two images are kept in memory as long as the
                returned module lives: example inputs for ``cigl.save`` and ``cigl.sparse_inference``.
            forward: ``forward(model, batch)`` runs one batch, where the usual forms of a batch don't fit.
            average: False takes the current weights instead of the average.
            whole: Of a sharded model (FSDP2), return a plain one with all weights on every process, not a sharded one.

        Returns:
            A module that knows nothing of cigl and has at least the announced zeros. (M has exactly the announced
            number of active positions; an active weight may itself be zero, for example where it has grown last and
            has not moved, or was masked in all of few snapshots that were averaged.)
        """
        self._check()
        return finish.finalize(self._context, loader, forward, average, whole)

    def members(self, n: int | None = None) -> list[nn.Module]:
        """Plain models whose predictions are to be averaged.

        Args:
            n: How many. Of a method that keeps snapshots ("cigl-no-wma") the last ``n``, or all; of a method with a
                random mask ``n`` models, each with a Z of its own.

        Pass them to ``cigl.evaluate(None, loader, members=...)``.
        """
        self._check()
        return finish.members(self._context, n)

    def sample_posterior(
        self, n: int = 1, loader: Iterable[Any] | None = None, forward: Forward | None = None, seed: int = 0
    ) -> list[nn.Module]:
        """Models drawn from the Gaussian with the averaged first and second moment.

        Args:
            n: How many.
            loader: Training data, to re-estimate batch-norm statistics of each model.
            forward: ``forward(model, batch)`` runs one batch, where the usual forms of a batch don't fit.
            seed: Of the draw.

        The second moment must have been kept: ``cigl.method("cigl", second_moment=True)``.
        """
        self._check()
        return finish.sample_posterior(self._context, n, loader, forward, seed)

    def ema(self, decay: float = 0.999, *, use_buffers: bool = False) -> Ema:
        """An exponential moving average of the weights that follows M, updated after each step from now on.

        ``sparse.ema(decay).finalize(loader)`` gives the averaged model, at any time. Each decay has one average,
        which another call returns again; it is saved and resumed with the sparsifier.

        Args:
            decay: The share of the old average in the new one, from 0 to below 1.
            use_buffers: Average batch-norm statistics and other buffers too, as
                ``torch.optim.swa_utils.AveragedModel`` does.
        """
        if self._context.is_detached:
            raise CiglError("this sparsifier was detached: there are no more steps to average.")
        return self._averages.get(decay, use_buffers)

    def state_dict(self, complete: bool = False) -> dict[str, Any]:
        """Everything needed to resume, as tensors and plain values; save it with the model and the optimizer.

        Where parameters are sharded, it holds DTensors, for torch.distributed.checkpoint, and every process must call.

        Args:
            complete: Add averages that have not begun, as zeros, so that a checkpoint of a sharded model can be loaded
                for a plain one. (A sharded state always has them.)
        """
        self._sharding.before_change()
        self._context.check_modules()
        return checkpoint.save(self._context, self._calls.places, self._averages, complete)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, or refuse it with nothing changed.

        Args:
            state: What ``state_dict`` returned. The model's weights must be those of the same moment: the next training
                forward compares.
        """
        self._sharding.before_change()
        saved = checkpoint.read(self._context, state, self._averages)
        self._loop.restore_weights()
        checkpoint.apply(self._context, saved)
        self._context.random_mask.mask_changed()
        self._context.kernels.topology_changed()
        self._calls.restore(saved.places)
        self._checks.state_was_loaded(saved.fingerprints)
        if missing := self._averages.apply(saved.averages):
            message = f"the saved state has no EMA with decay {missing[0]}: it starts again."
            warnings.warn(message, CiglWarning, stacklevel=2)

    def detach(self) -> None:
        """Remove all hooks; the model keeps M*W."""
        self._context.is_detached = True
        self._loop.restore_weights()
        self._calls.remove()
        self._binding.remove()
        self._context.kernels.remove()

    def _was_sharded(self) -> None:
        """The model was sharded after it was attached, and the layers hold the parameters of now."""
        self._context.kernels.remove()
        self._context.kernels = NoKernels()
        self._context.random_mask.mask_changed()
        self._unselected.parameters_were_replaced()
        self._binding.renew(self.layers)
        self._context.invariant.snapshot()

    def _check(self) -> None:
        if self._context.is_detached:
            raise CiglError("this sparsifier was detached: finalize before detach(), or attach again.")
        self._sharding.before_change()
        self._context.check_modules()
        self._unselected.check()
        self._checks.run(self.step)
        self._context.invariant.check_result()
        self._context.readings.read()
        self._agreement.compare_results(self.step)

    # Copies: a sparsifier belongs to one model, and a copy of the model goes without

    def __deepcopy__(self, memo: dict[int, Any]) -> DetachedSparsifier:
        return DetachedSparsifier()

    def __reduce__(self) -> tuple[type[DetachedSparsifier], tuple[()]]:
        return DetachedSparsifier, ()
