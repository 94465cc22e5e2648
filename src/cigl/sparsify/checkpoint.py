"""Saving and going on: the sparsifier's state, and the checks that it fits the weights beside it.

A state is tensors and plain values only. It carries a checksum of each selected weight, because masks and
weights of different moments look alike and silently train on: the first training forward after a load
compares. Whatever the order of the loads, a wrong one is named there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cigl.errors import CiglError
from cigl.sparsify.layer import Layer

if TYPE_CHECKING:
    from cigl.sparsify.sparsifier import Sparsifier

VERSION = 1


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
                "fingerprint": fingerprint(layer),
            }
            for layer in sparse.layers
        },
        "collection": None if sparse.collection is None else sparse.collection.state_dict(),
    }


def load(sparse: Sparsifier, state: Mapping[str, Any]) -> dict[str, int]:
    """Take the state over, or refuse it with nothing changed; returns the weights' fingerprints."""
    if not isinstance(state, Mapping) or "version" not in state or "layers" not in state:
        raise CiglError("this is not a state of a cigl sparsifier: save it with sparse.state_dict().")
    if state["version"] != VERSION:
        raise CiglError(f"this state has format version {state['version']}; this cigl reads {VERSION}.")
    for what, mine in (("method", sparse.method.describe()), ("settings", sparse.settings)):
        _same(f"{what} ", mine, state[what])
    _same("layer ", {la.name: tuple(la.shape) for la in sparse.layers},
          {name: tuple(part["mask"].shape) for name, part in state["layers"].items()})  # fmt: skip
    for layer in sparse.layers:
        part = state["layers"][layer.name]
        layer.set_mask(part["mask"], part["explored"])
        layer.memory = {name: value.to(layer.bits.device, copy=True) for name, value in part["memory"].items()}
    if sparse.collection is not None:
        sparse.collection.load_state_dict(state["collection"])
    sparse.step = int(state["step"])
    return {name: int(part["fingerprint"]) for name, part in state["layers"].items()}


def _same(what: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name in [*mine, *(extra for extra in saved if extra not in mine)]:
        here, there = mine.get(name), saved.get(name)
        if here != there:
            raise CiglError(
                f"the saved state is of another run: {what}{name!r} is {there!r} there and {here!r} here; "
                "attach with the settings it was saved with. Nothing was changed."
            )


def fingerprint(layer: Layer) -> int:
    """A checksum of M*W, bit by bit."""
    weight = layer.true_weight().contiguous().cpu().view(-1).view(torch.uint8)
    return zlib.crc32(weight.numpy().data)


def check_fingerprints(sparse: Sparsifier, expected: Mapping[str, int]) -> None:
    for layer in sparse.layers:
        if fingerprint(layer) != expected[layer.name]:
            raise CiglError(
                f"the weights of {layer.name} are not those that belong to the loaded sparsifier state (step "
                f"{sparse.step}). Build the model, cigl.attach it, and only then load the model's, the "
                "optimizer's and the sparsifier's states, all saved at the same moment: attaching to loaded "
                "weights zeroes those outside a new mask."
            )


def check_zeros(sparse: Sparsifier) -> None:
    """After the user has loaded weights into the model: nothing may lie outside M."""
    for layer in sparse.layers:
        stray = int(((layer.weight != 0) & ~layer.mask).sum())
        if stray:
            raise CiglError(
                f"the weights loaded into the model have {stray} non-zeros outside the mask of {layer.name}: "
                "load the sparsifier's state of the same moment too (sparse.load_state_dict), or load the "
                "weights first and then attach with initial='magnitude'."
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
