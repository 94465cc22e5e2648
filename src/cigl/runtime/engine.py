"""The engine: a module that computes what the model does, on sparse kernels wherever they are faster."""

from __future__ import annotations

import copy
import logging
import math
import os
import pickle
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.preprocessing import Preprocessing
from cigl.common.text import one_line
from cigl.runtime import plan as plans
from cigl.runtime.assignment import Assignment, assign
from cigl.runtime.comparing import Comparison, agree, drawing_from, is_random, kind_of, kinds, outputs, repeats, twin
from cigl.runtime.compile.capture import HINT, Captured
from cigl.runtime.compile.exporting import Examples
from cigl.runtime.compile.fusing import fuse
from cigl.runtime.compile.lowering import Untraceable, lower
from cigl.runtime.compile.tracing import copied
from cigl.runtime.dense import in_torch, messages, of_module, without_kernel
from cigl.runtime.layers import modules_in_torch, replace_layers, without_engines
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.network.weights import Weight
from cigl.runtime.pickling import pickled
from cigl.runtime.predicting import Predictions, predict
from cigl.runtime.program import library
from cigl.runtime.program.packed import Packed, pack
from cigl.runtime.remembered import recalled
from cigl.runtime.schedule import OtherShape, Schedule, Survey, fitting, run_in_torch, survey
from cigl.runtime.showing import rows, table

SCHEDULES = 64  # shapes whose buffers are kept; the one not used for longest goes first
BUFFERS = 1 << 30  # bytes of them, beyond which only a few shapes are
FEW = 8
LONG = 1.0  # seconds that a first call may take before a message says what it does
ENTRIES = 256  # shapes whose assignment is remembered
_log = logging.getLogger("cigl")


def sparse_inference(
    model: nn.Module, plan: dict[str, Any] | None = None, *, example_inputs: Examples | None = None
) -> SparseInference:
    """``model`` for inference on a CPU, faster the more zeros its weights have. The model itself is not changed.

    What is called with a new shape of inputs is timed, layer by layer, and each layer then runs on whichever is faster
    for that shape: torch or a sparse kernel.

    Args:
        model: The model; its weights are copied.
        plan: Repeats the assignments of an earlier ``fast.plan()``, without timing.
        example_inputs: A tuple of inputs or a dict of keyword inputs. They let torch.export read models that torch.fx
            can't follow, as those of Transformers, and forwards that ask for types, torch's modes, autocast, random
            numbers or variables outside of the model; sizes may differ from the examples' as far as the model doesn't
            depend on them. What neither can read runs in torch, with each sparse layer on its own kernels. A model
            that ``finalize(loader)`` returned has examples already.

    The first outputs are compared with those of the model in torch, which is kept in memory until then. If they are
    others, a warning says so, and the model runs in torch from then on.

    >>> import torch
    >>> from torch import nn
    >>> from cigl import sparse_inference
    >>> fast = sparse_inference(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    >>> fast(torch.ones(2, 8)).shape
    torch.Size([2, 4])
    """
    return engine_of(copied(model), plan, recalled(model) if example_inputs is None else example_inputs)


def engine_of(model: nn.Module, plan: dict[str, Any] | None, example_inputs: Examples | None) -> SparseInference:
    """``sparse_inference`` of a model in eval mode that nobody else has: its tensors become the engine's."""
    layer_plans, given = plans.of_layers(plan), example_inputs is not None
    try:
        network = lower(model, example_inputs)
    except Untraceable as reason:
        plain = twin(reason.model)
        engines, weights = replace_layers({"": reason.model}, _layer_engine, layer_plans)
        notes = [*reason.notes, "so the model runs in torch, and its sparse layers one by one"]
        dense = of_module(reason.model, "", weights)
        network = Network(notes=["; ".join(notes) + ".", *messages(dense)])
        return _warned(SparseInference(network, None, engines, Comparison(plain) if engines else None, reason.model))
    if isinstance(model, Captured):  # which is a graph already: what leads to no output is left out
        compared = Comparison(_InTorch(replace(network, units=list(network.units))))
    else:
        compared = Comparison(twin(model), "" if given else HINT)
    engines, weights = replace_layers(modules_in_torch(network), _layer_engine, layer_plans)
    fuse(network)
    if library.available():
        pack(network)
        network.notes += in_torch(network, weights)
    return _warned(SparseInference(network, plan, engines, compared))


def _warned(engine: SparseInference) -> SparseInference:
    for note in engine.notes if library.available() else [*engine.notes, library.reason()]:
        warnings.warn(note, CiglWarning, stacklevel=4)
    return engine


def _layer_engine(layer: nn.Module, plan: dict[str, Any] | None) -> SparseInference | None:
    """The engine of a layer that is called by itself; None if there are no kernels for it."""
    network = lower(layer)
    if not library.available() or not any(isinstance(unit.operation, op.Weighted) for unit in network.units):
        return None
    pack(network)
    return SparseInference(network, plan)


class SparseInference(nn.Module):
    """What ``cigl.sparse_inference`` and ``cigl.load`` return. Call it like the model, also from several threads.

    >>> import torch
    >>> from torch import nn
    >>> from cigl import sparse_inference
    >>> fast = sparse_inference(nn.Linear(8, 4))
    >>> outputs = fast(torch.ones(2, 8))
    >>> [unit["runs"] in ("sparse", "dense") for unit in fast.plan()["shapes"][0]["units"]]
    [True]
    """

    def __init__(
        self,
        network: Network,
        plan: dict[str, Any] | None = None,
        layers: Mapping[str, SparseInference] | None = None,
        comparison: Comparison | None = None,
        instead: nn.Module | None = None,
    ):
        super().__init__()
        self._network = network
        self._layers = dict(layers or {})  # engines of layers inside of modules that torch runs
        self._entries = {} if plan is None else plans.read(network, plan)
        self._schedules: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self._lock = threading.Lock()
        self._facts: dict[Any, Survey] = {}
        self._said: set[str] = set()
        self._comparison = comparison
        # what torch runs where nothing was captured, or it was wrong; in a tuple: its parameters are not the engine's
        self._instead: tuple[nn.Module, ...] = () if instead is None else (instead,)
        self.classes: tuple[str, ...] | None = None  # as a file names them
        self.preprocessing: Preprocessing | None = None  # as a file describes it
        self.training = False
        _engines.add(self)

    @property
    def notes(self) -> list[str]:
        """What runs in torch although it was meant to be sparse, and why."""
        return self._network.notes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._instead:
            return self._by_layers(args, kwargs)
        inputs = self._network.signature.bind(args, kwargs)
        kind = kinds(inputs)
        with torch.no_grad():
            if self._comparison is None or self._comparison.knows(kind):
                return self._run(inputs)[0]
            with self._comparison.lock:
                if not self._instead and not self._comparison.knows(kind):
                    return self._compared(self._comparison, kind, inputs, args, kwargs)
        return self(*args, **kwargs)

    def _run(self, inputs: Sequence[Any]) -> tuple[Any, Tensor | None]:
        """The outputs, and the state of torch's random numbers before those that they depend on."""
        schedule = self._schedule(inputs)
        state = None if self._comparison is None else torch.get_rng_state()
        try:
            return schedule(inputs), state
        except OtherShape:
            return run_in_torch(self._network, inputs), state

    def _compared(
        self, comparison: Comparison, kind: Any, inputs: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The first outputs for inputs of a kind. If the model in torch has others, it computes from now on."""
        model = comparison.model

        def expected() -> Any:
            if model is None:  # it was right for other inputs
                return run_in_torch(self._network, [each.clone() for each in inputs])
            return outputs(twin(model), args, kwargs)

        try:
            found, state = self._run(inputs)
        except CiglError as error:
            if error.__cause__ is None:  # ours, not what the graph has made of it
                raise
            try:
                expected()
            except Exception:  # it can't take them either
                raise error from error.__cause__
            return self._give_up(comparison, inputs, args, kwargs)
        assert state is not None
        with drawing_from(state):
            try:
                right = expected()
            except Exception as error:  # an assertion, which the graph is without
                raise _not_taken([tuple(each.shape) for each in inputs], error) from error
        draws = any(isinstance(unit.operation, op.InTorch) for unit in self._network.units)
        if not agree(found, right) and not (draws and is_random(expected, state)):
            return self._give_up(comparison, inputs, args, kwargs)
        comparison.passed(kind)
        return found

    def _give_up(
        self, comparison: Comparison, inputs: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Leave it to torch from now on, with kernels for single layers."""
        model = comparison.model or _InTorch(self._network)
        engines = dict(replace_layers({"": model}, _layer_engine, {}).engines)
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        note = (
            f"for inputs of shape {shapes}, what was captured computes something else than the model, so the model "
            f"runs in torch{', and its sparse layers one by one' if engines else ''}{comparison.hint}."
        )
        self._leave_to_torch(model, engines, note)
        return self._by_layers(args, kwargs)

    def _by_layers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What torch makes of the model with engines for single layers; alone, if these turn out to be wrong."""
        comparison, model = self._comparison, self._instead[0]
        kind = None if comparison is None else kind_of((args, kwargs))
        if comparison is None or not self._layers or comparison.knows(kind):
            return outputs(model, args, kwargs)  # which are given copies, as the model may change them
        with comparison.lock:
            try:
                with drawing_from(torch.get_rng_state()):
                    right = outputs(twin(model), args, kwargs)
            except Exception:  # of inputs that it can't take
                return outputs(model, args, kwargs)
            found = outputs(model, args, kwargs)
            if agree(found, right) or not repeats(lambda: outputs(twin(model), args, kwargs), torch.get_rng_state()):
                comparison.passed(kind)
                return found
            note = "the sparse layers compute something else than the model, so the model runs in torch alone."
            self._leave_to_torch(without_engines(model), {}, note)
            return right

    def _leave_to_torch(self, model: nn.Module, engines: dict[str, SparseInference], note: str) -> None:
        with self._lock:
            self._instead, self._layers = (model,), engines
            self._network = Network(notes=[*self._network.notes, note])
            self._entries, self._schedules = {}, OrderedDict()
        warnings.warn(note, CiglWarning, stacklevel=3)

    def predict(
        self,
        images: Any,
        *,
        classes: Sequence[str] | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    ) -> Predictions:
        """Labels and probabilities of images: paths, PIL images, uint8 arrays (height, width, channels) or tensors
        (channels, height, width), of any size, one or several. What the file doesn't say, or says otherwise, can be
        given."""
        classes = self.classes if classes is None else classes
        preprocessing = self.preprocessing if preprocessing is None else preprocessing
        return predict(self, images, classes=classes, preprocessing=preprocessing)

    def plan(self) -> dict[str, Any]:
        """For each shape of inputs seen so far, what runs sparse and what dense, and the times that decided it."""
        with self._lock:
            found = {
                "version": plans.VERSION,
                "kernels": library.isa() if library.available() else f"none: {library.reason()}",
                "notes": self.notes,
                "shapes": list(self._entries.values()),
            }
            if self._layers:
                found["layers"] = {path: engine.plan() for path, engine in self._layers.items()}
            return copy.deepcopy(found)

    @property
    def bytes(self) -> int:
        """The memory that the engine holds: weights in their present forms, and buffers."""
        return self._bytes_of_weights(self._comparison) + self._bytes_of_buffers()

    @property
    def weight_bytes(self) -> int:
        """The memory of the weights alone, in their present forms."""
        return self._bytes_of_weights(None)

    def _bytes_of_buffers(self) -> int:
        with self._lock:  # another thread may be adding a schedule
            schedules = list(self._schedules.values())
        layers = sum(engine._bytes_of_buffers() for engine in self._layers.values())
        return sum(schedule.bytes for schedule in schedules) + layers

    def _bytes_of_weights(self, comparison: Comparison | None) -> int:
        """Each tensor once, in whatever it is found: layers, constants, modules that torch runs or compares with."""
        held: dict[int, int] = {}

        def add(found: Any) -> None:
            for each in pytree.tree_leaves(found):
                if isinstance(each, Tensor):
                    held[each.data_ptr()] = each.nbytes
                elif isinstance(each, nn.Module):
                    add([*each.parameters(), *each.buffers()])
                elif isinstance(each, Weight):
                    add(each.forms)
                elif isinstance(each, Packed):
                    held[id(each)] = each.bytes

        for engine in (self, *self._layers.values()):
            add([vars(unit.operation) for unit in engine._network.units])
            add([engine._network.constants, engine._instead])
        add(None if comparison is None else comparison.model)
        return sum(held.values())

    def __repr__(self) -> str:
        """Its layers, their zeros, and what runs sparse for the inputs that were new last."""
        found = rows(self._network, self._last)
        for path, engine in self._layers.items():
            found += [row._replace(name=path) for row in rows(engine._network, engine._last)]
        return table(found, self._last, self.notes)

    @property
    def _last(self) -> dict[str, Any] | None:
        return next(reversed(self._entries.values()), None)

    def train(self, mode: bool = True) -> SparseInference:
        if mode:
            raise CiglError("the engine is for inference: train the model that it was made from.")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseInference:
        return _made(type(self), self._state())  # what a network holds is never changed, so both may use it

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (pickled((type(self), self._state())),)

    def _state(self) -> dict[str, Any]:
        """All but buffers and the lock."""
        with self._lock:
            fresh: dict[str, Any] = {"_schedules": OrderedDict(), "_facts": {}, "_lock": None}
            return {**vars(self), "_entries": dict(self._entries), **fresh}

    def _schedule(self, inputs: Sequence[Tensor]) -> Schedule:
        """The schedule for inputs like these, made if it is new."""
        threads = torch.get_num_threads()
        key = (threads, *((x.shape, x.dtype, x.device, x.layout) if isinstance(x, Tensor) else None for x in inputs))
        with self._lock:
            if key in self._schedules:
                self._schedules.move_to_end(key)
                return self._schedules[key]
            self._network.signature.check(inputs)
            made = self._schedules[key] = self._make(inputs, threads)
            self._drop_schedules()
            return made

    def _drop_schedules(self) -> None:
        if len(self._schedules) <= min(FEW, SCHEDULES):
            return
        held = sum(schedule.bytes for schedule in self._schedules.values())
        while len(self._schedules) > (SCHEDULES if held <= BUFFERS else min(FEW, SCHEDULES)):
            _, dropped = self._schedules.popitem(last=False)
            held -= dropped.bytes

    def _make(self, inputs: Sequence[Tensor], threads: int) -> Schedule:
        shapes = tuple(tuple(each.shape) for each in inputs)
        kind = (shapes, tuple(each.dtype for each in inputs))
        facts, progress = self._facts.get(kind), _Progress(shapes)
        if facts is None:
            facts = self._facts[kind] = self._survey(inputs, shapes)
        progress()
        assignment = self._assignment(inputs, shapes, facts, threads, progress)
        if shapes not in self._entries:
            self._entries[shapes] = plans.entry(self._network, facts, shapes, threads, assignment)
        for known in (self._entries, self._facts):
            if len(known) > ENTRIES:
                del known[next(iter(known))]
        return Schedule(self._network, facts, assignment.sparse, threads)

    def _survey(self, inputs: Sequence[Tensor], shapes: plans.Shapes) -> Survey:
        try:
            facts = survey(self._network, inputs)
        except Exception as error:
            raise _not_taken(shapes, error) from error
        if library.available():
            for name, sentence in without_kernel(self._network, facts, fitting(self._network, facts)).items():
                if name not in self._said:
                    self._said.add(name)
                    warnings.warn(sentence, CiglWarning, stacklevel=2)
        return facts

    def _assignment(
        self, inputs: Sequence[Tensor], shapes: plans.Shapes, facts: Survey, threads: int, progress: _Progress
    ) -> Assignment:
        if not library.available() or any(each.numel() == 0 for each in inputs):
            return Assignment(set())
        known = self._entries.get(shapes) or plans.near(self._entries, shapes)
        if known is not None:
            return plans.followed(self._network, known, fitting(self._network, facts))
        return assign(self._network, facts, inputs, threads, progress)


def _not_taken(shapes: Sequence[tuple[int, ...]], error: Exception) -> CiglError:
    return CiglError(f"the model can't take inputs of shape {', '.join(map(str, shapes))}: {one_line(error)}.")


class _InTorch(nn.Module):
    """What was captured, without kernels."""

    def __init__(self, network: Network):
        super().__init__()
        self._network = network

    def __deepcopy__(self, memo: dict[int, Any]) -> _InTorch:
        return _InTorch(self._network)  # a call changes nothing

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return run_in_torch(self._network, self._network.signature.bind(args, kwargs))


class _Progress:
    """Says once what is happening, when it takes long."""

    def __init__(self, shapes: plans.Shapes):
        self._shapes, self._due = shapes, time.perf_counter() + LONG

    def __call__(self) -> None:
        if time.perf_counter() > self._due:
            self._due = math.inf
            _log.warning(
                "preparing the engine for inputs of shape %s, once: fast.plan() keeps the result for other processes",
                ", ".join(map(str, self._shapes)),
            )


def _made(kind: type[SparseInference], state: dict[str, Any]) -> SparseInference:
    engine = kind.__new__(kind)
    vars(engine).update(state)
    engine._lock = threading.Lock()
    _engines.add(engine)
    return engine


def _unpickled(data: bytes) -> SparseInference:
    return _made(*pickle.loads(data))


# A fork copies a lock as it is: held forever if another thread was timing a shape just then.
_engines: WeakSet[SparseInference] = WeakSet()


def _renew_locks() -> None:
    for engine in _engines:
        engine._lock = threading.Lock()
        if engine._comparison is not None:
            engine._comparison.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
