"""``cigl.attach``: checks everything first, then makes the model sparse and binds the method to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cigl.common.copying import unwrap
from cigl.common.errors import CiglError, CiglWarning, unknown
from cigl.common.numbers import is_number, is_whole
from cigl.common.text import count, percent
from cigl.sparsify.guards.checks import check_agreed
from cigl.sparsify.loop.binding import is_attached
from cigl.sparsify.loop.context import Context
from cigl.sparsify.loop.kernels import check_kind, check_possible
from cigl.sparsify.methods.catalogue import Method, changed
from cigl.sparsify.methods.catalogue import method as from_catalogue
from cigl.sparsify.methods.distribution import allocate
from cigl.sparsify.methods.rounds import count_weights
from cigl.sparsify.methods.schedule import Decay, Rise, Timetable
from cigl.sparsify.optimizers.state import OptimizerState
from cigl.sparsify.optimizers.wrappers import check_held, check_under_random_mask, resolve_optimizer
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.parameters.select import LayerChoice, select, warn_of_dense_majority
from cigl.sparsify.results.validation import check_validation
from cigl.sparsify.sparsifier import Sparsifier
from cigl.sparsify.tensors.flat_indexing import as_scores, read, write
from cigl.sparsify.tensors.shards import check_all_sharded, local, local_gradient
from cigl.sparsify.tensors.topk import Request, largest_of


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: str | Method = "cigl",
    *,
    sparsity: float,
    epochs: float,
    steps_per_epoch: int,
    distribution: str = "erk",
    update_every: int | None = None,
    drop_fraction: float | Decay | None = None,
    update_until: float | None = None,
    random_mask: float | Rise | None = None,
    average_from: float | None = None,
    initial: Literal["random", "magnitude"] = "random",
    rescale: bool = False,
    layers: LayerChoice | None = None,
    state: Iterable[str] | Mapping[str, float | Literal["weight"]] | None = None,
    seed: int = 0,
    kernels: Literal["auto", "sparse", "masked"] = "auto",
    validation: Iterable[Any] | None = None,
) -> Sparsifier:
    """Make ``model`` sparse and keep it so while the user's own loop trains it.

    Args:
        model: Any module; its parameter names and ``state_dict`` keys stay as they are.
        optimizer: The optimizer that holds the model's parameters, or a wrapper around it.
        method: A name from ``cigl.methods()``, or one's own: an object, or ``"package.module:name"``.
        sparsity: The share of zeros among the selected weights, from 0 to below 1; M has exactly so many.
        epochs: The length of training; may be a fraction that makes a whole number of steps.
        steps_per_epoch: In optimizer steps, not batches.
        distribution: How the layers share the weights: "erk", "er" or "uniform".
        update_every: Steps between topology rounds. None, here and below: the method's own.
        drop_fraction: The share of active weights that the first round drops, or a ``Decay``.
        update_until: The share of training after which the topology stays.
        random_mask: The share of active weights that Z switches off in each step, or a ``Rise``.
        average_from: The share of training after which snapshots are averaged.
        initial: "random", or "magnitude" to start from the largest weights of a pretrained model.
        rescale: Scale initial weights to each unit's sparse fan-in; networks without normalisation need it.
        layers: Globs over parameter or module names, to False (stays dense), True (takes part in the distribution:
            embeddings, frozen weights and parameters of unknown layers do only when asked for) or a density of its own.
        state: Which of the optimizer's states have one number per weight; None: known of torch's optimizers, and found
            out in the first steps of others (``summary()`` says what). Names, or names with the value of a new
            weight's state: a number, or "weight" for a copy of the weight.
        seed: Of all random choices; torch's global generator is neither used nor changed.
        kernels: "sparse" computes forward and backward over the active weights alone, on the CPU; "masked" on dense
            layers with zeros; "auto" sparse where a fixed rule of size and density says that it is faster.
        validation: A loader of held-out examples, (inputs, labels) or mappings with "labels", for "cigl-auto": a copy
            of the model is evaluated on it after each epoch. They must not be among the examples that are trained on.

    >>> import torch, cigl
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sparse = cigl.attach(model, optimizer, "rigl", sparsity=0.9, epochs=2, steps_per_epoch=100)
    >>> sparse.density
    0.1
    """
    if not isinstance(model, nn.Module):
        raise CiglError("attach takes a torch.nn.Module and a torch.optim.Optimizer, in this order.")
    chain = resolve_optimizer(optimizer)
    model = unwrap(model, in_training=True)
    options = {
        "update_every": update_every,
        "drop_fraction": drop_fraction,
        "update_until": update_until,
        "random_mask": random_mask,
        "average_from": average_from,
    }
    base = from_catalogue(method) if isinstance(method, str) else method
    if not isinstance(base, Method):
        raise CiglError(
            f"method is a {type(base).__name__}: give a name from cigl.methods() or a Method object.",
            arguments=("method",),
        )
    chosen = changed(base, **{name: value for name, value in options.items() if value is not None})
    check_validation(chosen, validation)
    _check_numbers(chosen, sparsity, initial, rescale, steps_per_epoch=steps_per_epoch, seed=seed)
    steps_per_epoch, seed = int(steps_per_epoch), int(seed)  # numpy's are welcome
    epochs = _checked_epochs(epochs, steps_per_epoch)
    if update_every is None:
        chosen = chosen.with_rounds(epochs, steps_per_epoch)
    table = chosen.timetable(epochs, steps_per_epoch)
    _check_times(chosen, table)
    check_kind(kernels)
    if is_attached(model):
        raise CiglError("this model is already attached: call detach() on its sparsifier first.")
    selected = select(model, layers)
    check_all_sharded({s.name: s.parameter for s in selected})
    if sparsity:
        warn_of_dense_majority(model, selected, layers or {})
    check_held(chain, [(s.name, s.parameter) for s in selected])
    if chosen.has_random_mask:
        check_under_random_mask(chain)
    states = OptimizerState(chain, state)
    states.check_sharded(s.parameter for s in selected)
    if initial == "random":
        _check_not_sparse([(s.name, s.parameter) for s in selected])
    fixed = {s.name: s.density for s in selected if s.density is not None}
    shapes = {s.name: s.layout.sides(tuple(s.parameter.shape)) for s in selected}
    counts = allocate(shapes, sparsity, distribution, fixed, {s.name: s.parameter.numel() for s in selected})
    if empty := [name for name, count in counts.items() if not count]:
        what = f"in {empty[0]}" if any(counts.values()) else "at all in this model"
        warnings.warn(f"sparsity {sparsity} leaves no weight {what}.", CiglWarning, stacklevel=2)

    check_possible(kernels, model, [s.parameter for s in selected])

    bound = [Layer(s, counts[s.name], len(selected), seed, states) for s in selected]
    check_agreed(
        bound, {**chosen.describe(), "seed": seed, "steps": table.steps, "initial": initial, "rescale": rescale}
    )
    _check_rates(chosen, table, bound)
    for layer in bound:
        layer.set_mask(_initial_mask(layer, chosen, initial))
        layer.memory = {name: torch.zeros_like(layer.weight, dtype=torch.float32) for name in chosen.memory}
    count_weights(bound)
    settings = {
        "sparsity": float(sparsity),
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
        "distribution": distribution,
        "layers": dict(layers or {}),
        "seed": seed,
    }
    context = Context(model, bound, states, chosen, table, settings, kernels)
    sparse = Sparsifier(context, validation)
    _make_sparse(sparse, context, rescale)
    return sparse


def _make_sparse(sparse: Sparsifier, context: Context, rescale: bool) -> None:
    """The first change of the model and the optimizer, when nothing but this can fail any more; all of it, or none."""
    before = [(tensor, tensor.clone()) for layer in context.layers for tensor in _masked_tensors(layer)]
    try:
        for layer in context.layers:
            layer.clear_inactive()
            if rescale:
                _rescale(layer)
        context.invariant.snapshot()
    except BaseException:
        for tensor, value in before:
            tensor.copy_(value)
        sparse.detach()
        raise


def _masked_tensors(layer: Layer) -> list[Tensor]:
    """All that attaching changes."""
    gradient = local_gradient(layer.parameter)
    return [layer.weight, *([] if gradient is None else [gradient]), *(state.tensor for state in layer.states())]


def _check_numbers(method: Method, sparsity: float, initial: str, rescale: bool, **whole: int) -> None:
    if not is_number(sparsity) or not 0 <= sparsity < 1:
        raise CiglError(
            f"sparsity is {sparsity!r}: give the share of zeros, from 0 to below 1 (0.95 for 95 %).",
            arguments=("sparsity",),
        )
    if method.starts_dense and method.update_every is None and sparsity:
        raise CiglError(
            f"method {method.name!r} has no zeros: pass sparsity=0, or choose another method.", arguments=("sparsity",)
        )
    for name, value in whole.items():
        if not is_whole(value) or (value < 1 and name != "seed"):
            raise CiglError(
                f"{name} is {value!r}: give a whole number" + ("." if name == "seed" else ", at least 1."),
                arguments=(name,),
            )
    if initial not in ("random", "magnitude"):
        raise unknown("initial", initial, ("random", "magnitude"))
    if rescale and (initial == "magnitude" or method.starts_dense):
        raise CiglError("rescale is for fresh weights under a random mask: pretrained or dense ones keep their scale.")


def _checked_epochs(epochs: float, steps_per_epoch: int) -> float:
    """An int where it is a whole number, as most are and as earlier versions have saved it."""
    if not is_number(epochs) or not math.isfinite(epochs) or epochs <= 0:
        raise CiglError(f"epochs is {epochs!r}: give a number above 0.", arguments=("epochs",))
    steps = float(epochs) * steps_per_epoch
    if round(steps) < 1 or abs(steps - round(steps)) > 1e-6:
        raise CiglError(
            f"{epochs} epochs of {steps_per_epoch} steps are {steps:g} steps: give a whole number of epochs, or a "
            "fraction that makes a whole number of steps."
        )
    return int(epochs) if int(epochs) == epochs else float(epochs)


def _check_times(method: Method, table: Timetable) -> None:
    rounds, snapshots = table.update_steps, table.snapshot_steps
    if table.update_every is not None and not rounds:
        if method.starts_dense:
            raise CiglError(
                f"{method.name} would never prune: its first round is due at step {table.update_every}, but "
                f"rounds end at step {table.update_end} of {table.steps}; set a smaller update_every.",
                arguments=("update_every",),
            )
        message = (
            f"the topology will never change: the first round is due at step {table.update_every}, but rounds end "
            f"at step {table.update_end} of {table.steps}; set a smaller update_every."
        )
        warnings.warn(CiglWarning(message, arguments=("update_every",)), stacklevel=3)
    if rounds and snapshots and rounds[-1] >= snapshots[0] and not method.resparsify:
        raise CiglError(
            f"averaging would start at step {snapshots[0]}, while the topology still changes up to step "
            f"{rounds[-1]}: raise average_from or lower update_until.",
            arguments=("average_from", "update_until"),
        )
    if table.average_from is not None and not snapshots and table.steps % table.steps_per_epoch:
        raise CiglError(
            f"nothing would be averaged: no epoch of {table.steps_per_epoch} steps ends in the last "
            f"{percent(1 - table.average_from, 0)} of {table.steps} steps; lower steps_per_epoch or average_from.",
            arguments=("average_from",),
        )
    few = len(snapshots) < 5 and method.average_of == "Z*W" and not method.keep_snapshots
    if few and method.has_random_mask:
        message = (
            f"only {count(len(snapshots), 'snapshot')} will be averaged, so much of Z's noise stays in the result: "
            "average_of='p*W' averages its expectation instead. So short a training may also lose several points of "
            "accuracy by the mask itself; 'cigl-auto' has one only where it helps."
        )
        warnings.warn(CiglWarning(message, arguments=("average_of",)), stacklevel=3)


def _check_rates(method: Method, table: Timetable, layers: Iterable[Layer]) -> None:
    """Whether the fan-in leaves anything of Z."""
    if method.fan_in_factor is None or not method.has_random_mask:
        return
    off = [layer.target * method.mask_rate(layer, layer.target, table, table.steps) for layer in layers]
    if sum(off) < 1:
        message = (
            f"fan_in_factor={method.fan_in_factor:g} switches the random mask off: so few weights are left per unit "
            "that Z would take less than one of the whole network in a step; raise it, or lower the sparsity."
        )
        warnings.warn(CiglWarning(message, arguments=("fan_in_factor",)), stacklevel=3)


def _check_not_sparse(parameters: list[tuple[str, Tensor]]) -> None:
    for name, parameter in parameters:
        held = local(parameter)
        zeros = float((held == 0).float().mean()) if held.numel() else 0.0
        if 0.5 <= zeros < 1:
            message = (
                f"{percent(zeros, 0)} of {name} is zero already, and a new random mask will zero most of the rest: to "
                "resume, load the weights after attaching; to start from them, use initial='magnitude'."
            )
            warnings.warn(message, CiglWarning, stacklevel=3)
            return


def _initial_mask(layer: Layer, method: Method, initial: str) -> Tensor:
    weight = layer.weight
    if method.starts_dense:
        return torch.ones_like(weight, dtype=torch.bool)
    score = weight.abs() if initial == "magnitude" else layer.uniform("initial", 0)
    (chosen,) = largest_of([Request(as_scores(score), layer.target, layer.part)])
    return chosen.view(weight.shape)


def _rescale(layer: Layer) -> None:
    """Multiply the weights into each unit by sqrt(dense fan-in / sparse fan-in): their sum keeps its variance."""
    layout, shape = layer.selected.layout, tuple(layer.shape)
    factors = (layout.dense_fan_in(shape) / layer.fans()[0].clamp_min(1)).sqrt()
    active = layer.active()
    units, _ = layout.ends(layer.part.to_global(active), shape)
    scales = factors.to(layer.weight)[units]
    write(layer.weight, active, read(layer.weight, active) * scales)
