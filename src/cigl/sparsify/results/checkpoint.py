"""The sparsifier's state: saved as tensors and plain values only, and read back whole or not at all.

It carries a checksum of each selected weight and its optimizer state, which checks.py compares at the first
training forward after a load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.numbers import is_number, is_whole
from cigl.sparsify.guards.checks import Fingerprints
from cigl.sparsify.guards.fingerprints import fingerprints
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.averaging import Collection
from cigl.sparsify.methods.controller import Controller
from cigl.sparsify.methods.rounds import count_weights
from cigl.sparsify.optimizers.inference import Verdict
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.results.ema import Averages, Ema
from cigl.sparsify.results.sharded_state import unwrapped, wrapped
from cigl.sparsify.tensors.shards import all_reduce_rows, has_shards, local

VERSION = 1


@dataclass(frozen=True)
class SavedLayer:
    """What is saved of a layer."""

    mask: Tensor
    explored: Tensor
    memory: Mapping[str, Tensor]
    fingerprint: int
    optimizer: Mapping[str, int]


@dataclass(frozen=True)
class SavedState:
    """A state that was checked to fit."""

    step: int
    layers: Mapping[str, SavedLayer]
    collection: Collection | None
    places: dict[str, int]
    averages: Mapping[float, Ema]
    optimizer_states: dict[str, Verdict]
    controller: Controller | None

    @property
    def fingerprints(self) -> Fingerprints:
        return {name: (layer.fingerprint, layer.optimizer) for name, layer in self.layers.items()}


def save(context: Context, places: Mapping[str, int], averages: Averages, complete: bool) -> dict[str, Any]:
    state: dict[str, Any] = {
        "version": VERSION,
        "step": context.step,
        "settings": dict(context.settings),
        "method": context.method.describe(),
        "layers": {layer.name: _save_layer(layer) for layer in context.layers},
        "collection": None if context.collection is None else context.collection.state_dict(),
        "places": dict(places),
        "kernels": context.kind,  # for the record, both: a run may resume with others
        "instructions": context.kernels.instructions,
    }
    if context.controller is not None:
        state["controller"] = context.controller.state_dict()
    if averages:
        state["ema"] = averages.state()
    if not context.states.is_known:
        state["optimizer_states"] = {n: v.fresh if v.per_weight else None for n, v in context.states.verdicts.items()}
    if not (complete or has_shards(context.model)):
        return state
    return wrapped(state, context.model, len(context.table.snapshot_steps), bool(context.method.second_moment))


def _save_layer(layer: Layer) -> dict[str, Any]:
    weights, states = fingerprints(layer)
    return {
        "mask": layer.mask,
        "explored": layer.explored.clone(),
        "memory": {name: value.clone() for name, value in layer.memory.items()},
        "fingerprint": weights,
        "optimizer": states,
    }


def read(context: Context, state: Mapping[str, Any], averages: Averages) -> SavedState:
    """Check everything, change nothing."""
    if not isinstance(state, Mapping) or not {"version", "layers"} <= state.keys():
        raise CiglError("this is not a state of a cigl sparsifier: save it with sparse.state_dict().")
    if state["version"] != VERSION:
        raise CiglError(f"this state has format version {state['version']}; this cigl reads {VERSION}.")
    try:
        return _read(context, state, averages)
    except CiglError:
        raise
    except Exception as error:  # a damaged file can hold anything
        what = error if type(error) is ValueError else repr(error)
        raise CiglError(f"this sparsifier state is damaged ({what}): take an earlier checkpoint.") from error


def _read(context: Context, state: Mapping[str, Any], averages: Averages) -> SavedState:
    for what, mine in (("method", context.method.describe()), ("settings", context.settings)):
        _check_same(f"{what} ", mine, state[what])
    shapes = {name: tuple(part["mask"].shape) for name, part in state["layers"].items()}
    _check_same("layer ", {layer.name: tuple(layer.shape) for layer in context.layers}, shapes)
    state = unwrapped(state, context.model)
    layers = {name: SavedLayer(**part) for name, part in state["layers"].items()}
    for layer in context.layers:
        _check_layer(layer, layers[layer.name])
    _check_counts(context, layers)
    if not is_whole(state["step"]) or state["step"] < 0:
        raise ValueError(f"step {state['step']!r}")
    collection = context.method.collection()
    if collection is not None:
        collection.load_state_dict(state["collection"], {n: local(p) for n, p in context.model.named_parameters()})
    elif state["collection"] is not None:
        raise ValueError(f"method {context.method.name!r} collects nothing")
    places = dict(state["places"])
    if not set(places) <= set(layers) or not all(is_whole(count) and count >= 0 for count in places.values()):
        raise ValueError(f"places {places}")
    emas = averages.read(state.get("ema", ()))  # neither was there in version 0.1.0
    verdicts = _read_verdicts(state.get("optimizer_states", {}))
    controller = context.controller and context.controller.loaded(state["controller"])
    return SavedState(int(state["step"]), layers, collection, places, emas, verdicts, controller)


def _read_verdicts(state: Mapping[str, Any]) -> dict[str, Verdict]:
    if not all(isinstance(n, str) and (f in (None, "weight") or is_number(f)) for n, f in state.items()):
        raise ValueError(f"optimizer_states {state}")
    return {name: Verdict(False) if fresh is None else Verdict(True, fresh) for name, fresh in state.items()}


def _check_counts(context: Context, layers: Mapping[str, SavedLayer]) -> None:
    may_be_denser = context.method.starts_dense
    mine = torch.tensor([[int(layers[layer.name].mask.sum())] for layer in context.layers])
    ones = all_reduce_rows([layer.part for layer in context.layers], mine)[:, 0].tolist()
    for layer, count in zip(context.layers, ones, strict=True):
        if count != layer.target and not (may_be_denser and layer.target < count <= layer.size):
            raise ValueError(f"the mask of {layer.name} has {count} ones instead of {layer.target}")


def _check_layer(layer: Layer, saved: SavedLayer) -> None:
    for what, mask in (("mask", saved.mask), ("explored mask", saved.explored)):
        if mask.dtype != torch.bool or mask.shape != layer.weight.shape:
            raise ValueError(f"the {what} of {layer.name} is {mask.dtype} of shape {tuple(mask.shape)}")
    if bool((saved.mask & ~saved.explored).any()):
        raise ValueError(f"active weights of {layer.name} are not explored")
    if saved.memory.keys() != layer.memory.keys():
        raise ValueError(f"the method's memory of {layer.name} is {list(saved.memory)} instead of {list(layer.memory)}")
    for name, value in saved.memory.items():
        if value.dtype != torch.float32 or value.shape != layer.weight.shape:
            raise ValueError(f"{name} of {layer.name} is {value.dtype} of shape {tuple(value.shape)}")
    checksums = [saved.fingerprint, *dict(saved.optimizer).values()]
    if not all(is_whole(checksum) for checksum in checksums):
        raise ValueError(f"the checksums of {layer.name} are {checksums}")


def _check_same(what: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name in [*mine, *(extra for extra in saved if extra not in mine)]:
        here, there = mine.get(name), saved.get(name)
        if here != there:
            raise CiglError(
                f"the saved state is of another run: {what}{name!r} is {there!r} there and {here!r} here; "
                "attach with the settings it was saved with. Nothing was changed."
            )


def apply(context: Context, saved: SavedState) -> None:
    """Take the state over; the parameters must hold M*W."""
    for layer in context.layers:
        part = saved.layers[layer.name]
        layer.set_mask(part.mask, part.explored)
        layer.memory = {name: value.to(layer.bits.device, copy=True) for name, value in part.memory.items()}
    count_weights(context.layers)
    context.states.restore(saved.optimizer_states)
    context.collection, context.step = saved.collection, saved.step
    if saved.controller is not None:
        context.controller = saved.controller
        context.random_mask.strength = saved.controller.strength
