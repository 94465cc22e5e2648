"""Whether the processes that train one model together hold the same masks: compared without waiting for anybody.

Masks are never sent around: every process must come to the same ones. Where torch.distributed is initialised, each
process leaves a short record of a step in its store (the one that the processes met through) and reads those that
others have left. No collective is called, so that a process that trains alone, or another model, can't hang.

Processes train one model together if the gradient that their optimizers are about to apply is the same, bit by bit;
whoever averages gradients, DistributedDataParallel or the user's own loop, makes it so. Others are not touched.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.guards.fingerprints import fingerprint
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer

_PATIENCE = 5  # steps in which the others' records are looked for

Record = dict[str, Any]


class Agreement:
    """Compares with the other processes before the first step and after each topology round."""

    def __init__(self, layers: Sequence[Layer], table: Timetable):
        self._layers, self._table = layers, table
        described = zlib.crc32(repr([(layer.name, tuple(layer.shape)) for layer in self._layers]).encode())
        self._key = f"cigl/{described}"
        self._store: Any = None
        self._mine: Record | None = None
        self._missing: set[int] = set()
        self._tries = 0
        self._partners: set[int] = set()  # that train this model together with this process

    def compare(self, step: int) -> None:
        """Before the optimizer's step; raises where a partner's masks are others."""
        if not _several() or self._layers[0].part.group is not None:  # whose masks follow from one selection
            return
        if self._mine is None or self._table.updates(step - 1):
            self._mine = {"step": step, "gradient": self._gradient(), "masks": self._masks()}
            self._missing, self._tries = _others(), 0
            self._leave(str(step), self._mine)
        if not self._missing or self._tries == _PATIENCE:
            return
        self._tries += 1
        for rank, theirs in self._found(str(self._mine["step"])).items():
            if self._mine["gradient"] is None or theirs["gradient"] != self._mine["gradient"]:
                continue  # another training, or one that this process has had before: look again
            self._missing.discard(rank)
            self._partners.add(rank)
            if name := self._different(theirs):
                raise CiglError(
                    f"the processes {distributed.get_rank()} and {rank} apply the same gradients, but hold different "
                    f"masks of {name} (step {step}): wrap the model in DistributedDataParallel, so that the dense "
                    "gradients which masks grow by are averaged too, and attach with the same options and seed "
                    "everywhere."
                )

    def compare_results(self, step: int) -> None:
        """Before a result, after ``step`` steps: with the partners that have come to theirs already."""
        if not _several() or not self._partners or self._mine is None:
            return
        name_of_training = f"result/{self._mine['gradient']}"  # which the partners have in common
        mine = {"step": step, "masks": self._masks()}
        self._missing = set(self._partners)
        self._leave(name_of_training, mine)
        for rank, theirs in self._found(name_of_training).items():
            name = self._different(theirs, mine)
            if name or theirs["step"] != mine["step"]:
                what = f"different masks of {name}" if name else "the same masks"
                message = (
                    f"the processes {distributed.get_rank()} and {rank}, which trained one model together, end with "
                    f"{what} after {mine['step']} and {theirs['step']} steps: every process must take the same steps."
                )
                warnings.warn(message, CiglWarning, stacklevel=4)
                return

    def _gradient(self) -> int | None:
        """A checksum of what the optimizer is about to apply to the smallest layer; None where it says nothing."""
        gradient = min(self._layers, key=lambda layer: layer.size).parameter.grad
        if gradient is None or not gradient.any() or not gradient.isfinite().all():
            return None
        return fingerprint(gradient)

    def _masks(self) -> list[int]:
        return [fingerprint(layer.bits) for layer in self._layers]

    def _different(self, theirs: Record, mine: Record | None = None) -> str | None:
        """The first layer whose mask is another one there."""
        masks = (mine or self._mine or {})["masks"]
        pairs = zip(self._layers, masks, theirs["masks"], strict=True)
        return next((layer.name for layer, here, there in pairs if here != there), None)

    # The store. When the process that keeps it has ended, there is nobody left to compare with.

    def _leave(self, name: str, record: Record) -> None:
        try:
            self._store = distributed.distributed_c10d._get_default_store()
            self._store.set(f"{self._key}/{name}/{distributed.get_rank()}", json.dumps(record))
        except (RuntimeError, AttributeError):  # or MPI has none
            self._missing = set()

    def _found(self, name: str) -> dict[int, Record]:
        found: dict[int, Record] = {}
        try:
            for rank in sorted(self._missing):
                key = f"{self._key}/{name}/{rank}"
                if self._store is not None and self._store.check([key]):
                    found[rank] = json.loads(self._store.get(key))
        except RuntimeError:
            self._missing = set()
        return found


def _several() -> bool:
    return torch.distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _others() -> set[int]:
    return set(range(distributed.get_world_size())) - {distributed.get_rank()}
