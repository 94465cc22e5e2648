"""Engines with many shapes, in other processes, and what the first call costs."""

from __future__ import annotations

import copy
import io
import logging
import multiprocessing
import os
import pickle
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from nets import close, network_of, sparse
from torch import nn

import cigl
from cigl.runtime import assignment, schedule
from cigl.runtime import engine as engines
from cigl.runtime.network import operations as op
from cigl.runtime.program import layout, library

needs_kernels = pytest.mark.skipif(not library.available(), reason="no kernels here")


class Words(nn.Module):
    """Several kinds of calls in torch between sparse layers."""

    def __init__(self):
        super().__init__()
        self.words, self.first = nn.Embedding(20, 32), nn.Linear(32, 64)
        self.norm, self.last = nn.LayerNorm(64), nn.Linear(64, 8)

    def forward(self, x):
        y = self.norm(F.gelu(self.first(self.words(x))))
        y = F.max_pool2d(y[:, None], (1, 2), return_indices=True)[0].squeeze(1).repeat(1, 1, 2)
        return self.last(y).softmax(-1)


def words(length, batch=2):
    return torch.randint(0, 20, (batch, length))


def test_pickle_and_torch_save():
    model = sparse(Words(), 0.9)
    x = words(5)
    for fast in (cigl.sparse_inference(model), cigl.sparse_inference(model, example_inputs=(x,))):
        wanted = fast(x)
        buffer = io.BytesIO()
        torch.save(fast, buffer)
        buffer.seek(0)
        for twin in (pickle.loads(pickle.dumps(fast)), torch.load(buffer, weights_only=False), copy.deepcopy(fast)):
            assert twin.plan() == fast.plan()
            assert torch.equal(twin(x), wanted)
            with torch.no_grad():
                other = words(9)
                assert close(twin(other), model(other))
        pickle.dumps(fast)  # once more, with buffers


def test_an_engine_of_layers_in_another_process():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    global Importable
    Importable = Branching
    Branching.__qualname__ = "Importable"
    model = sparse(Branching(), 0.9)
    with pytest.warns(cigl.CiglWarning):
        fast = cigl.sparse_inference(model)
    x = torch.ones(3, 32)
    fast(x)
    twin = pickle.loads(pickle.dumps(fast))
    assert close(twin(x), fast(x))
    assert twin.plan().get("layers") == fast.plan().get("layers")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_fork_while_another_thread_times_a_shape(monkeypatch):
    fast = cigl.sparse_inference(sparse(nn.Sequential(nn.Linear(32, 32)), 0.9))
    x = torch.ones(2, 32)
    wanted = fast(x)
    entered, leave = threading.Event(), threading.Event()

    def slow(*arguments):
        entered.set()
        leave.wait(30)
        return schedule.survey(*arguments)

    monkeypatch.setattr(engines, "survey", slow)
    timing = threading.Thread(target=fast, args=(torch.ones(7, 32),))
    timing.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is ended
        os._exit(0 if torch.equal(fast(x), wanted) else 1)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        leave.set()
        timing.join()
    assert os.waitstatus_to_exitcode(status) == 0


@needs_kernels
def test_a_near_shape_of_a_captured_model_costs_no_dense_layers(monkeypatch):
    model = sparse(Words(), 0.9)
    fast = cigl.sparse_inference(model, example_inputs=(words(20),))
    fast(words(20))
    plan = fast.plan()
    for unit in plan["shapes"][0]["units"]:
        unit["runs"] = "sparse"
    again = cigl.sparse_inference(model, plan=plan, example_inputs=(words(20),))
    x = words(24)
    with torch.no_grad():
        wanted = model(x)
    monkeypatch.setattr(op.Linear, "dense", None)
    assert close(again(x), wanted)


@needs_kernels
def test_near_shapes_share_their_assignment(monkeypatch):
    calls = []
    monkeypatch.setattr(engines, "assign", lambda *given: calls.append(given) or assignment.assign(*given))
    model = sparse(Words(), 0.9)
    fast = cigl.sparse_inference(model)
    with torch.no_grad():
        for length in (20, 24, 18, 29, 20, 24):
            x = words(length)
            assert close(fast(x), model(x))
        assert len(calls) == 1
        x = words(64)
        assert close(fast(x), model(x))
    assert len(calls) == 2
    runs = [[unit["runs"] for unit in entry["units"]] for entry in fast.plan()["shapes"]]
    assert runs[0] == runs[1] == runs[2]


def test_a_shape_that_comes_again_is_not_run_in_torch_first(monkeypatch):
    surveys = []
    monkeypatch.setattr(engines, "survey", lambda *given: surveys.append(given) or schedule.survey(*given))
    monkeypatch.setattr(engines, "SCHEDULES", 2)
    fast = cigl.sparse_inference(sparse(Words(), 0.9))
    for length in (4, 8, 12, 16) * 3:
        fast(words(length))
    assert len(surveys) == 4
    assert len(fast._schedules) == 2


def test_many_shapes_are_kept_as_far_as_memory_allows(monkeypatch):
    fast = cigl.sparse_inference(sparse(Words(), 0.9))
    for length in range(4, 24):
        fast(words(length))
    assert len(fast._schedules) == 20
    monkeypatch.setattr(engines, "BUFFERS", 1)
    fast(words(30))
    assert len(fast._schedules) <= 20 if not library.available() else len(fast._schedules) == engines.FEW


@needs_kernels
def test_without_time_each_kind_of_layer_is_timed_once(monkeypatch):
    monkeypatch.setattr(assignment, "BUDGET", 0.0)
    monkeypatch.setattr(assignment, "_NEARLY", 0.0)  # whole networks are not compared, however close they are
    dense, kernels = [], []
    run, seconds = schedule.TorchCall.run, schedule.ProgramCall.seconds
    monkeypatch.setattr(schedule.TorchCall, "run", lambda self, *given: dense.append(self) or run(self, *given))
    monkeypatch.setattr(
        schedule.ProgramCall, "seconds", lambda self, *given: kernels.append(self) or seconds(self, *given)
    )
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)), nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3))
    model.insert(4, nn.Unflatten(1, (1, 8, 8)))
    with torch.no_grad():
        for layer in model:
            if hasattr(layer, "weight"):
                layer.weight.view(-1)[::2] = 0.0
    fast = cigl.sparse_inference(model)
    x = torch.randn(5, 64)
    made = []
    monkeypatch.setattr(
        engines, "Schedule", lambda *given: made.append((len(dense), len(kernels))) or schedule.Schedule(*given)
    )
    with torch.no_grad():
        assert close(fast(x), model(x))
    assert made == [(1 + 3, 2 * 3)]  # Unflatten by the survey, then three kinds of layers
    [entry] = fast.plan()["shapes"]
    assert sum({"dense_ms", "sparse_ms"} <= unit.keys() for unit in entry["units"]) == 6


@needs_kernels
def test_no_layer_is_computed_to_find_its_shape(monkeypatch):
    """Neither linear layers nor convolutions, where shapes can't depend on values; and the shapes are torch's."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, dilation=2), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
        nn.MaxPool2d(2), nn.Conv2d(6, 8, (3, 1), padding=(1, 0), groups=2), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip
    x = torch.randn(2, 3, 17, 20)
    with torch.no_grad():
        wanted = model.eval()(x)
    network = network_of(model)
    real = survey_by_running(network, x)
    for kind in (op.Conv, op.ConvTranspose, op.Linear):
        monkeypatch.setattr(kind, "dense", None)
    facts = schedule.survey(network, [x])
    assert facts.shapes == real
    assert facts.shapes[network.results()[0]] == tuple(wanted.shape)


def survey_by_running(network, x):
    values, shapes = {**network.constants, network.inputs[0]: x}, {network.inputs[0]: tuple(x.shape)}
    with torch.no_grad():
        for unit in network.units:
            result = unit.operation.dense(*(values[value] for value in unit.inputs))
            for value, each in zip(unit.outputs, result if len(unit.outputs) == 2 else [result], strict=True):
                values[value], shapes[value] = each, tuple(each.shape)
    return shapes


@needs_kernels
def test_layers_alike_share_their_times():
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)), nn.Linear(64, 32))
    with torch.no_grad():
        for layer in model:
            layer.weight.zero_()[:, ::8] = 1.0
    fast = cigl.sparse_inference(model)
    fast(torch.randn(5, 64))
    [entry] = fast.plan()["shapes"]
    assert len({(unit["dense_ms"], unit["sparse_ms"]) for unit in entry["units"][:3]}) == 1


@needs_kernels
def test_long_timing_is_announced(monkeypatch, caplog):
    fast = cigl.sparse_inference(sparse(nn.Sequential(nn.Linear(64, 64)), 0.9))
    with caplog.at_level(logging.WARNING, logger="cigl"):
        fast(torch.randn(5, 64))
        assert not caplog.records
        monkeypatch.setattr(engines, "LONG", 0.0)
        fast(torch.randn(50, 64))
    assert "preparing the engine for inputs of shape (50, 64)" in caplog.text


class Narrowing(nn.Module):
    """Wide pictures that get narrow, a shortcut over the border, and wide ones again, if asked for."""

    def __init__(self, back):
        super().__init__()
        self.first, self.short = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 40, 1, 4)
        self.down = nn.Sequential(nn.Conv2d(24, 40, 3, 2, 1), nn.ReLU(), nn.Conv2d(40, 40, 3, 2, 1))
        self.late = nn.Sequential(nn.Conv2d(40, 40, 3, padding=1), nn.SiLU(), nn.Conv2d(40, 16, 1))
        self.up = nn.ConvTranspose2d(16, 4, 4, 4) if back else nn.Identity()

    def forward(self, x):
        x = self.first(x).relu()
        return self.up(self.late(self.down(x) + self.short(x)))


@needs_kernels
@pytest.mark.parametrize("images", [1, 7, 16, 19])
@pytest.mark.parametrize("back", [False, True])
def test_narrow_pictures_are_a_program_of_their_own(images, back, monkeypatch):
    monkeypatch.setattr(layout, "_LARGE", 50_000)  # as if the first pictures were large
    model, x = sparse(Narrowing(back), 0.8), torch.randn(images, 3, 24, 24)
    network = network_of(model)
    with torch.no_grad():
        facts = schedule.survey(network, [x])
        made = schedule.Schedule(network, facts, schedule.fitting(network, facts), 1)
        assert close(made([x]), model(x))
    lanes = [call.program._executable._layout.lanes for call in made._calls]
    apart = images >= 8 and not back
    assert lanes == ([1, min(library.lanes(library.isa()), 8 if images < 16 else 16)] if apart else [1])
