"""What comes out of a training: plain models that know nothing of this package."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.batches import default_forward
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.numbers import is_whole
from cigl.runtime.remembered import remember
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.averaging import RunningMean, Snapshots
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.results.batch_norm import Forward, reestimate_batch_norm, running_norms
from cigl.sparsify.results.copies import plain_copy
from cigl.sparsify.tensors.flat_indexing import as_scores, keep_only
from cigl.sparsify.tensors.random_numbers import key
from cigl.sparsify.tensors.shards import all_reduce_rows, is_sharded, part_of, reshard
from cigl.sparsify.tensors.shards import average as average_over_processes
from cigl.sparsify.tensors.topk import Request, largest_of

_log = logging.getLogger("cigl")


def finalize(
    context: Context, loader: Iterable[Any] | None, forward: Forward | None, average: bool, whole: bool = False
) -> nn.Module:
    mean = context.collection if average and isinstance(context.collection, RunningMean) else None
    if mean is not None and not mean.count:
        raise CiglError(
            f"there is nothing to average yet: {_progress(context)}; the first snapshot comes at step "
            f"{context.table.snapshot_steps[0]}. Train on, or take the current weights with finalize(average=False)."
        )
    _need_loader(context, loader, changed=changes_weights(context, average))
    _check_length(context)
    if mean is not None and context.method.resparsify:
        values = _cut_back(context, mean.mean)
    elif mean is not None:
        values = _with_announced_zeros(context, mean.mean)
    else:
        rates = context.mask_rates if context.method.final_weights == "p*W" else {}
        final = {layer.name: layer.true_weight() * (1 - rates.get(layer.name, 0.0)) for layer in context.layers}
        values = _with_announced_zeros(context, final)
    return _plain(context, values, loader, forward, whole)


def preview(context: Context) -> nn.Module:
    """p*W, in eval mode."""
    rates = context.mask_rates
    values = {layer.name: layer.true_weight() * (1 - rates[layer.name]) for layer in context.layers}
    return _plain(context, _with_announced_zeros(context, values)).eval()


def finalize_ema(
    context: Context,
    average: Mapping[str, Tensor],
    loader: Iterable[Any] | None,
    forward: Forward | None,
    needs_loader: bool,
    whole: bool,
) -> nn.Module:
    if needs_loader and loader is None and running_norms(context.model):
        raise CiglError(
            "the model has batch norm, and its statistics are not those of the average: pass a loader over training "
            "data, finalize(loader), or average them too, sparse.ema(decay, use_buffers=True)."
        )
    context.check_modules()
    _check_length(context)
    return _plain(context, _with_announced_zeros(context, average), loader, forward, whole)


def changes_weights(context: Context, average: bool = True) -> bool:
    """Whether what ``finalize`` returns is not what was trained with: an average, or weights trained under Z."""
    return context.method.has_random_mask or (average and isinstance(context.collection, RunningMean))


def members(context: Context, n: int | None) -> list[nn.Module]:
    if n is not None:
        n = _count(n)
    if isinstance(context.collection, Snapshots):
        snapshots = context.collection.models
        n = len(snapshots) if n is None else n
        if not 1 <= n <= len(snapshots):
            raise CiglError(f"{len(snapshots)} snapshots were taken, {n} asked for: {_progress(context)}.")
        return [_plain(context, _with_announced_zeros(context, values)) for values in snapshots[-n:]]
    if not context.method.has_random_mask:
        raise CiglError(
            f"method {context.method.name!r} has neither snapshots nor a random mask to draw members from; "
            "'cigl-no-wma' and 'rigl-mcdp' have."
        )
    if n is None:
        raise CiglError("say how many masks to draw: members(n), n at least 1.")
    models = []
    rates = context.random_mask.rates(context.step)
    for number in range(n):
        values = {}
        for active in context.random_mask.active:
            kept = active.kept(context.random_mask.draw(active, "members", number, rates))
            for layer, bits in zip(active.layers, kept, strict=True):
                values[layer.name] = layer.true_weight()
                keep_only(values[layer.name], bits)
        models.append(_plain(context, _with_announced_zeros(context, values)))
    return models


def sample_posterior(
    context: Context, n: int, loader: Iterable[Any] | None, forward: Forward | None, seed: int
) -> list[nn.Module]:
    mean = context.collection
    if not isinstance(mean, RunningMean) or not mean.second_moment:
        raise CiglError(
            "the second moment was not kept: attach with a method that averages and keeps it, for example "
            "cigl.method('cigl', second_moment=True)."
        )
    n = _count(n)
    if not is_whole(seed):
        raise CiglError(f"seed is {seed!r}: give a whole number.")
    if mean.count < 2:
        raise CiglError(f"{mean.count} snapshots give no variance: {_progress(context)}.")
    _need_loader(context, loader, changed=True)
    if loader is not None and iter(loader) is loader and n > 1:
        raise CiglError("the loader can be read only once, and each model needs it: pass a list or a DataLoader.")
    variance = mean.variance()
    starts = {name: part_of(p).start for name, p in context.model.named_parameters() if part_of(p).start}
    models = []
    for number in range(n):
        values = {}
        for name, value in mean.mean.items():
            stream = "posterior" if name not in starts else f"posterior from {starts[name]}"
            generator = torch.Generator().manual_seed(key(int(seed), stream, number, name) >> 1)
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value.device)
            values[name] = value + variance[name].clamp_min(0).sqrt() * noise
        models.append(_plain(context, _with_announced_zeros(context, values), loader, forward))
    return models


def _plain(
    context: Context,
    values: Mapping[str, Tensor],
    loader: Iterable[Any] | None = None,
    forward: Forward | None = None,
    whole: bool = False,
) -> nn.Module:
    """A copy of the model with these values, and batch-norm statistics that fit them where a loader is given."""
    model = plain_copy(context.model, values, whole)
    norms = running_norms(model)
    if loader is not None and norms:
        with _remembering(model):
            reestimate_batch_norm(model, loader, forward)
        sharded = next((p for p in context.model.parameters() if is_sharded(p)), None)
        if sharded is not None:  # the mean of what the processes have seen
            statistics = [each for norm in norms for each in (norm.running_mean, norm.running_var)]
            average_over_processes(sharded, [each for each in statistics if each is not None])
            reshard(model)  # its forward has gathered the weights
    elif loader is not None:
        _remember_inputs(model, loader, forward)
    return model


class _Seen(Exception):
    pass


@contextmanager
def _remembering(model: nn.Module, then_stop: bool = False) -> Iterator[None]:
    """What the model is called with first are example inputs for cigl.save."""
    seen: list[Any] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not seen:
            seen.append(None)
            remember(model, args, kwargs)
        if then_stop:
            raise _Seen

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _remember_inputs(model: nn.Module, loader: Iterable[Any], forward: Forward | None) -> None:
    """Of one batch, with which nothing is computed. What yields its batches only once is left alone."""
    state = torch.get_rng_state()
    try:
        batches = iter(loader)
        if batches is not loader:
            batch = next(batches)
            with _remembering(model, then_stop=True):
                (forward or default_forward)(model, batch)
    except Exception as error:  # a loader that isn't needed may be of any kind
        if not isinstance(error, _Seen):
            _log.debug("no example inputs could be read: %s", error)
    finally:
        torch.set_rng_state(state)


def _count(n: Any) -> int:
    """numpy's whole numbers are welcome; "2", 2.0 and True are not."""
    if not is_whole(n) or n < 1:
        raise CiglError(f"n is {n!r}: say how many models, as a whole number of at least 1.")
    return int(n)


def _progress(context: Context) -> str:
    return f"{context.step} of the {context.table.steps} announced steps were seen"


def _check_length(context: Context) -> None:
    if context.watch.is_off(context.step):
        when = "early" if context.step < context.table.steps else "late"
        warnings.warn(
            f"finalizing {when}: {_progress(context)}{context.watch.why(context.step)}.", CiglWarning, stacklevel=4
        )


def _need_loader(context: Context, loader: Iterable[Any] | None, changed: bool) -> None:
    if loader is None and changed and running_norms(context.model):
        raise CiglError(
            "the model has batch norm, and its statistics are not those of the weights to be returned: pass a "
            "loader over training data, finalize(loader)."
        )


def _cut_back(context: Context, mean: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sup-tickets: the largest of the superposed weights, as many per layer as it may have."""
    return dict(mean) | {layer.name: _largest(mean[layer.name], layer) for layer in context.layers}


def _largest(value: Tensor, layer: Layer) -> Tensor:
    """As many entries of largest magnitude as the layer may have, zeros elsewhere."""
    (chosen,) = largest_of([Request(as_scores(value.abs()), layer.target, layer.part)])
    value = value.clone()
    keep_only(value, torch.empty_like(value, dtype=torch.int8).copy_(chosen.view(value.shape)).neg_())
    return value


def _with_announced_zeros(context: Context, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No weight outside M, whatever was written to the model, and no layer with more non-zeros than announced.

    There may be fewer: an active weight may itself be zero.
    """
    result, cut = dict(values), []
    for layer in context.layers:
        result[layer.name] = result[layer.name].clone()
        keep_only(result[layer.name], layer.bits)
    mine = torch.stack([result[layer.name].count_nonzero() for layer in context.layers])[:, None]
    counts = all_reduce_rows([layer.part for layer in context.layers], mine)[:, 0].tolist()
    for layer, count in zip(context.layers, counts, strict=True):
        if count > layer.target:  # gradual pruning, before its last round
            result[layer.name] = _largest(result[layer.name], layer)
            cut.append(layer.name)
    if cut:
        message = (
            f"the pruning of {cut[0]} was not completed: in what is returned, {len(cut)} layers were cut to the "
            "announced number of weights, by magnitude."
        )
        warnings.warn(message, CiglWarning, stacklevel=4)
    return result
