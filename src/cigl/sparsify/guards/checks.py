"""What is checked before a step and before a result: that masks, weights and optimizer state belong together.

Masks and weights of different moments look alike and silently train on. So whatever was loaded, in whatever
order, is compared once at the next training forward, where a wrong part is named.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.guards.fingerprints import fingerprint, fingerprints
from cigl.sparsify.guards.unselected import Unselected
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import all_reduce_rows, check_same, is_sharded

Fingerprints = Mapping[str, tuple[int, Mapping[str, int]]]  # of each layer's weights and optimizer state


class Checks:
    """Knows what was loaded since the last check."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer], unselected: Unselected):
        self._model, self._layers, self._unselected = model, layers, unselected
        self._loaded: Fingerprints | None = None  # empty: weights or optimizer state, but no sparsifier state

    def weights_were_loaded(self) -> None:
        self._loaded = self._loaded or {}

    def state_was_loaded(self, expected: Fingerprints) -> None:
        self._loaded = expected

    def parameters(self) -> None:
        check_modules(self._model, self._layers)
        check_parameters(self._layers)

    def run(self, step: int) -> None:
        self.parameters()
        self._unselected.run(step)
        if self._loaded is None:
            return
        belong_together = bool(self._loaded)
        if belong_together:
            check_fingerprints(self._layers, self._loaded, step)
            self._loaded = {}
        # Weights that were saved with this M may have been written to before: mask_invariant.py sets that right.
        check_zeros(self._layers, weights=not belong_together)
        self._loaded = None


def check_fingerprints(layers: Sequence[Layer], expected: Fingerprints, step: int) -> None:
    for layer in layers:
        weights, states = expected[layer.name]
        weights_now, states_now = fingerprints(layer)
        if weights_now != weights:
            raise CiglError(
                f"the weights of {layer.name} are not those that belong to the loaded sparsifier state (step "
                f"{step}). Build the model, cigl.attach it, and only then load the model's, the "
                "optimizer's and the sparsifier's states, all saved at the same moment: attaching to loaded "
                "weights zeroes those outside a new mask."
            )
        if layer.part.group is not None:  # a sharded state may have been loaded without them
            states_now = {name: states_now.get(name, 0) for name in states}
        if states_now != states:
            message = (
                f"the optimizer's state of {layer.name} is not the one that was saved with the sparsifier (step "
                f"{step}), so training will not continue as it would have: load it after cigl.attach, from "
                "the same moment."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)
            return


def check_zeros(layers: Sequence[Layer], weights: bool = True) -> None:
    """After the user has loaded something: nothing may lie outside M."""
    for layer in layers:
        outside, states = ~layer.mask, layer.states()
        found = [((layer.weight != 0) & outside).sum()]
        found += [((s.tensor != 0) & (s.tensor != s.of_zero) & outside).sum() for s in states]
        in_weights, *in_states = all_reduce_rows([layer.part], torch.stack(found)[None])[0].tolist()
        if weights and (stray := in_weights):
            raise CiglError(
                f"the weights loaded into the model have {stray} non-zeros outside the mask of {layer.name}: "
                "load the sparsifier's state of the same moment too (sparse.load_state_dict), or load the "
                "weights first and then attach with initial='magnitude'."
            )
        for state, stray in zip(states, in_states, strict=True):
            if stray:
                raise CiglError(
                    f"the state loaded into the optimizer has {stray} non-zeros ({state.name}) outside the mask of "
                    f"{layer.name}: load model, optimizer and sparsifier states that were saved at the same moment."
                )


def check_modules(model: nn.Module, layers: Sequence[Layer]) -> None:
    """The modules of the selected parameters are where they were: masks and hooks stay with one that was taken out."""
    for layer in layers:
        path = layer.name.rpartition(".")[0]
        now = _module_at(model, path)
        if now is layer.selected.owners[0].module:
            continue
        names = {id(p): name for name, p in model.named_parameters()}
        if (new := names.get(id(layer.parameter))) is not None:
            what = f"{layer.name} is now {new}, because its module was wrapped or moved after cigl.attach"
        elif isinstance(getattr(now, layer.name.rpartition(".")[2], None), Tensor):
            what = f"{path or 'the model'} was replaced after cigl.attach, so {layer.name} is a weight without a mask"
        else:
            what = f"{layer.name} was removed from the model after cigl.attach"
        raise CiglError(
            f"{what}: put the module back, or call detach() and attach to the model as it is now, with an optimizer "
            "that has its parameters (initial='magnitude' keeps the non-zeros of its weights)."
        )


def _module_at(model: nn.Module, path: str) -> nn.Module | None:
    module: nn.Module | None = model
    for part in path.split(".") if path else ():
        module = None if module is None else module._modules.get(part)
    return module


def check_parameters(layers: Sequence[Layer]) -> None:
    for layer in layers:
        for owner in layer.selected.owners:
            held = owner.module._parameters.get(owner.attribute)
            if held is layer.selected.parameter:
                continue
            if held is not None and not isinstance(held, nn.Parameter):
                raise CiglError(
                    f"torch.func computes with a stand-in for {layer.name}, on which masks can't act: train through "
                    "model(x) and loss.backward(), and use functional_call or torch.func.grad in eval mode only."
                )
            raise CiglError(
                f"the parameter {layer.name} was replaced after cigl.attach (by load_state_dict(assign="
                "True), sharding, torch.func.functional_call or the like): detach, and attach to the model as it "
                "is now."
            )


def check_agreed(layers: Sequence[Layer], settings: Mapping[str, Any]) -> None:
    """Where parameters are sharded: every process must have made the same layers sparse, in the same way."""
    described = [(layer.name, tuple(layer.shape), layer.target) for layer in layers]
    numbers = [zlib.crc32(repr(value).encode()) for value in (described, sorted(settings.items(), key=str))]
    what = ["made different layers sparse", "been given different options or seeds"]
    sharded = [layer.parameter for layer in layers if is_sharded(layer.parameter)]
    for parameter in {p.device_mesh: p for p in sharded}.values():  # type: ignore[attr-defined]
        check_same(parameter, numbers, what)


def check_same_masks(layers: Sequence[Layer], ddp: DistributedDataParallel) -> None:
    """Under DDP every process must have the same M: it is never sent around."""
    attached = zlib.crc32(repr([(layer.name, tuple(layer.shape)) for layer in layers]).encode())
    device, group = layers[0].bits.device, ddp.process_group
    if ranks := _differing(torch.tensor([attached], device=device), group)[0]:
        raise CiglError(
            f"the processes (ranks {ranks}) made different layers sparse: attach to the same model with the same "
            "options everywhere."
        )
    masks = torch.tensor([fingerprint(layer.bits) for layer in layers], device=device)
    for layer, ranks in zip(layers, _differing(masks, group), strict=True):
        if ranks:
            raise CiglError(
                f"the processes (ranks {ranks}) hold different masks of {layer.name}: attach with the same seed "
                "everywhere, and with initial='magnitude' only after the model was wrapped in "
                "DistributedDataParallel."
            )


def _differing(mine: Tensor, group: torch.distributed.ProcessGroup) -> list[str]:
    """For each number "0 and R", R the first rank whose number is another one than rank 0's; or nothing."""
    all_ranks = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(all_ranks, mine, group=group)
    columns = zip(*(numbers.tolist() for numbers in all_ranks), strict=True)
    firsts = [next((rank for rank, number in enumerate(column) if number != column[0]), 0) for column in columns]
    return [f"0 and {first}" if first else "" for first in firsts]
