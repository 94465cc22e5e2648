"""The engine: a module that computes what the model does, on sparse kernels wherever they are faster."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cigl.errors import CiglError, CiglWarning
from cigl.runtime import plan as plans
from cigl.runtime.assignment import Assignment, assign
from cigl.runtime.compile import operations as op
from cigl.runtime.compile.fusing import fuse
from cigl.runtime.compile.lowering import lower
from cigl.runtime.compile.network import Network
from cigl.runtime.program import library
from cigl.runtime.program.packed import pack
from cigl.runtime.schedule import OtherShape, Schedule, fitting, run_in_torch, survey

SCHEDULES = 8  # shapes whose buffers are kept; the one not used for longest goes first
ENTRIES = 256  # shapes whose assignment is remembered


def sparse_inference(model: nn.Module, plan: dict[str, Any] | None = None) -> SparseInference:
    """``model`` for inference on a CPU, faster the more zeros its weights have. The model itself is not changed.

    What is called with a new shape of inputs is timed, layer by layer, and each layer then runs on whichever is faster
    for that shape: torch or a sparse kernel. ``plan`` repeats the assignments of an earlier ``fast.plan()`` instead.

    >>> fast = sparse_inference(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    >>> fast(torch.ones(2, 8)).shape
    torch.Size([2, 4])
    """
    network = lower(model)
    for note in network.notes:
        warnings.warn(note, CiglWarning, stacklevel=2)
    fuse(network)
    if library.available():
        pack(network)
    else:
        warnings.warn(library.reason(), CiglWarning, stacklevel=2)
    return SparseInference(network, plan)


class SparseInference(nn.Module):
    """Call it like the model, with the arguments that have no default. Safe to call from several threads."""

    def __init__(self, network: Network, plan: dict[str, Any] | None = None):
        super().__init__()
        self._network = network
        self._entries = {} if plan is None else plans.read(network, plan)
        self._schedules: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self._lock = threading.Lock()
        self.training = False

    def forward(self, *inputs: Tensor) -> Any:
        with torch.no_grad():
            try:
                return self._schedule(inputs)(inputs)
            except OtherShape:
                return run_in_torch(self._network, inputs)

    def plan(self) -> dict[str, Any]:
        """For each shape of inputs seen so far, what runs sparse and what dense, and the times that decided it."""
        with self._lock:
            found = {
                "version": plans.VERSION,
                "kernels": library.isa() if library.available() else f"none: {library.reason()}",
                "notes": self._network.notes,
                "shapes": list(self._entries.values()),
            }
            return copy.deepcopy(found)

    @property
    def bytes(self) -> int:
        """The memory that the engine holds: weights in their present forms, and buffers."""
        weights = {
            id(unit.operation.weight): unit.operation.weight.bytes
            for unit in self._network.units
            if isinstance(unit.operation, op.Layer)
        }
        with self._lock:  # another thread may be adding a schedule
            schedules = list(self._schedules.values())
        return sum(weights.values()) + sum(schedule.bytes for schedule in schedules)

    def train(self, mode: bool = True) -> SparseInference:
        if mode:
            raise CiglError("the engine is for inference: train the model that it was made from.")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseInference:
        twin = SparseInference(self._network)  # what a network holds is never changed, so both may use it
        with self._lock:
            twin._entries = dict(self._entries)
        return twin

    def _check(self, inputs: Sequence[Any]) -> None:
        names = self._network.names
        if len(inputs) != len(names):
            raise CiglError(
                f"the model takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}; "
                "an argument with a default keeps it in the engine."
            )
        for name, each in zip(names, inputs, strict=True):
            if not isinstance(each, Tensor):
                raise CiglError(f"{name} must be a tensor, not {type(each).__name__}.")
            if each.layout != torch.strided:
                raise CiglError(f"{name} must be a plain tensor, not {each.layout}: call {name}.to_dense() first.")
            if each.device.type != "cpu":
                raise CiglError(f"the engine runs on the CPU, but {name} is on {each.device}: call {name}.cpu() first.")
            if each.is_floating_point() and each.dtype != torch.float32:
                raise CiglError(
                    f"the engine computes in float32, but {name} is {each.dtype}: call {name}.float() first."
                )

    def _schedule(self, inputs: Sequence[Tensor]) -> Schedule:
        """The schedule for inputs like these, made if it is new."""
        threads = torch.get_num_threads()
        key = (threads, *(isinstance(each, Tensor) and _kind(each) for each in inputs))
        with self._lock:
            if key in self._schedules:
                self._schedules.move_to_end(key)
                return self._schedules[key]
            self._check(inputs)
            made = self._schedules[key] = self._make(inputs, threads)
            if len(self._schedules) > SCHEDULES:
                self._schedules.popitem(last=False)
            return made

    def _make(self, inputs: Sequence[Tensor], threads: int) -> Schedule:
        shapes = tuple(tuple(each.shape) for each in inputs)
        network = self._network
        try:
            facts = survey(network, inputs)
        except Exception as error:
            raise CiglError(f"the model can't take inputs of shape {', '.join(map(str, shapes))}: {error}") from error
        if not library.available() or any(each.numel() == 0 for each in inputs):
            assignment = Assignment(set())
        elif shapes in self._entries:
            assignment = plans.followed(network, self._entries[shapes], fitting(network, facts))
        else:
            assignment = assign(network, facts, inputs, threads)
        if shapes not in self._entries:
            self._entries[shapes] = plans.entry(network, facts, shapes, threads, assignment)
            if len(self._entries) > ENTRIES:
                del self._entries[next(iter(self._entries))]
        return Schedule(network, facts, assignment.sparse, threads)


def _kind(x: Tensor) -> tuple[Any, ...]:
    """Inputs that are alike in this take the same schedule."""
    return x.shape, x.dtype, x.device, x.layout
