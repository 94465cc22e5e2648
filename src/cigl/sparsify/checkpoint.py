"""Saving and going on: the sparsifier's state, and the checks that it fits the weights beside it.

A state is tensors and plain values only. It carries a checksum of each selected weight, because masks and
weights of different moments look alike and silently train on: the first training forward after a load
compares. Whatever the order of the loads, a wrong one is named there.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cigl.errors import CiglError, CiglWarning
from cigl.sparsify.layer import Layer

if TYPE_CHECKING:
    from cigl.sparsify.sparsifier import Sparsifier

VERSION = 1
Fingerprints = Mapping[str, tuple[int, Mapping[str, int]]]  # of each layer's weights and optimizer state


def save(sparse: Sparsifier) -> dict[str, Any]:
    return {
        "version": VERSION,
        "step": sparse.step,
        "settings": dict(sparse.settings),
        "method": sparse.method.describe(),
        "layers": {
            layer.name: {
                "mask": layer.mask,
                "explored": layer.explored.clone(),
                "memory": {name: value.clone() for name, value in layer.memory.items()},
                "fingerprint": fingerprint(layer.true_weight()),
                "optimizer": {name: fingerprint(state) for name, state in layer.states(sparse.optimizer)},
            }
            for layer in sparse.layers
        },
        "collection": None if sparse.collection is None else sparse.collection.state_dict(),
        "places": dict(sparse.calls.places),
    }


def load(sparse: Sparsifier, state: Mapping[str, Any]) -> Fingerprints:
    """Take the state over, or refuse it with nothing changed; returns the fingerprints to be met."""
    if not isinstance(state, Mapping) or not {"version", "layers"} <= state.keys():
        raise CiglError("this is not a state of a cigl sparsifier: save it with sparse.state_dict().")
    if state["version"] != VERSION:
        raise CiglError(f"this state has format version {state['version']}; this cigl reads {VERSION}.")
    try:
        for what, mine in (("method", sparse.method.describe()), ("settings", sparse.settings)):
            _same(f"{what} ", mine, state[what])
        parts = {name: _Part(**part) for name, part in state["layers"].items()}
        step, collection = int(state["step"]), sparse.method.collection()
        places = {str(name): int(count) for name, count in state["places"].items()}
        shapes = {name: tuple(part.mask.shape) for name, part in parts.items()}
        _same("layer ", {layer.name: tuple(layer.shape) for layer in sparse.layers}, shapes)
        for layer in sparse.layers:
            _check_count(layer, int(parts[layer.name].mask.sum()), sparse.method.starts_dense)
        if collection is not None:
            collection.load_state_dict(state["collection"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CiglError(f"this sparsifier state is damaged ({error!r}): take an earlier checkpoint.") from error
    sparse.take_back_z()
    for layer in sparse.layers:
        part = parts[layer.name]
        layer.set_mask(part.mask, part.explored)
        layer.memory = {name: value.to(layer.bits.device, copy=True) for name, value in part.memory.items()}
    sparse.collection, sparse.step = collection, step
    sparse.calls.restore(places)
    sparse.take_back_z()
    return {name: (part.fingerprint, part.optimizer) for name, part in parts.items()}


@dataclass(frozen=True)
class _Part:
    """What is saved of a layer."""

    mask: Tensor
    explored: Tensor
    memory: Mapping[str, Tensor]
    fingerprint: int
    optimizer: Mapping[str, int]


def _check_count(layer: Layer, count: int, may_be_more: bool) -> None:
    if count != layer.target and not (may_be_more and layer.target < count <= layer.size):
        raise CiglError(
            f"the saved mask of {layer.name} has {count} ones instead of {layer.target}: take an earlier checkpoint."
        )


def _same(what: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name in [*mine, *(extra for extra in saved if extra not in mine)]:
        here, there = mine.get(name), saved.get(name)
        if here != there:
            raise CiglError(
                f"the saved state is of another run: {what}{name!r} is {there!r} there and {here!r} here; "
                "attach with the settings it was saved with. Nothing was changed."
            )


def fingerprint(tensor: Tensor) -> int:
    """A checksum, bit by bit."""
    return zlib.crc32(tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)


def check_fingerprints(sparse: Sparsifier, expected: Fingerprints) -> None:
    for layer in sparse.layers:
        weights, states = expected[layer.name]
        if fingerprint(layer.true_weight()) != weights:
            raise CiglError(
                f"the weights of {layer.name} are not those that belong to the loaded sparsifier state (step "
                f"{sparse.step}). Build the model, cigl.attach it, and only then load the model's, the "
                "optimizer's and the sparsifier's states, all saved at the same moment: attaching to loaded "
                "weights zeroes those outside a new mask."
            )
        if {name: fingerprint(state) for name, state in layer.states(sparse.optimizer)} != states:
            warnings.warn(
                f"the optimizer's state of {layer.name} is not the one that was saved with the sparsifier (step "
                f"{sparse.step}), so training will not go on as it would have: load it after cigl.attach, from "
                "the same moment.", CiglWarning, stacklevel=2,
            )  # fmt: skip
            return


def check_zeros(sparse: Sparsifier) -> None:
    """After the user has loaded something: nothing may lie outside M."""
    for layer in sparse.layers:
        outside = ~layer.mask
        if stray := int(((layer.weight != 0) & outside).sum()):
            raise CiglError(
                f"the weights loaded into the model have {stray} non-zeros outside the mask of {layer.name}: "
                "load the sparsifier's state of the same moment too (sparse.load_state_dict), or load the "
                "weights first and then attach with initial='magnitude'."
            )
        for name, state in layer.states(sparse.optimizer):
            if stray := int(((state != 0) & outside).sum()):
                raise CiglError(
                    f"the state loaded into the optimizer has {stray} non-zeros ({name}) outside the mask of "
                    f"{layer.name}: load model, optimizer and sparsifier states that were saved at the same moment."
                )


def check_parameters(sparse: Sparsifier) -> None:
    for layer in sparse.layers:
        for owner in layer.selected.owners:
            if owner.module._parameters.get(owner.attribute) is not layer.selected.parameter:
                raise CiglError(
                    f"the parameter {layer.name} was replaced after cigl.attach (by load_state_dict(assign="
                    "True), sharding or the like): detach, and attach to the model as it is now."
                )


def check_same_masks(sparse: Sparsifier, ddp: DistributedDataParallel) -> None:
    """Under DDP every process must have the same M: it is never sent around."""
    sums = [zlib.crc32(layer.mask.contiguous().cpu().numpy().data) for layer in sparse.layers]
    mine = torch.tensor(sums, device=sparse.layers[0].mask.device)
    low, high = mine.clone(), mine.clone()
    torch.distributed.all_reduce(low, torch.distributed.ReduceOp.MIN, group=ddp.process_group)
    torch.distributed.all_reduce(high, torch.distributed.ReduceOp.MAX, group=ddp.process_group)
    for layer, same in zip(sparse.layers, (low == high).tolist(), strict=True):
        if not same:
            raise CiglError(
                f"the processes hold different masks of {layer.name}: attach with the same seed everywhere, "
                "and with initial='magnitude' only after the model was wrapped in DistributedDataParallel."
            )
