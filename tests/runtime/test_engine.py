"""The engine as users meet it: equal outputs, any batch, several threads, clear errors."""

from __future__ import annotations

import copy
import json
import threading

import pytest
import torch
import torch.nn.utils.prune
from hypothesis import HealthCheck, given, settings
from nets import close, dense_result, drawn_nets, forced, sparse
from torch import nn

import cigl
from cigl.common.errors import CiglError, CiglWarning
from cigl.runtime import engine as engines
from cigl.runtime.program import library
from cigl.runtime.schedule import Schedule


def small(sparsity=0.9):
    return sparse(cigl.models.build("convnet", 10, (3, 16, 16)), sparsity)


def equal(fast, model, x):
    with torch.no_grad():
        assert close(fast(x), model(x))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 28, 28)),
        ("convnet", (3, 32, 32)),
        ("wrn-16-1", (3, 32, 32)),
        ("resnet18", (3, 32, 32)),
        ("resnet50", (3, 32, 32)),
    ],
)
def test_the_papers_networks(name, shape):
    model = sparse(cigl.models.build(name, 10, shape), 0.95)
    x = torch.randn(2, *shape)
    result, units = forced(model, x)  # all on kernels, whatever is faster
    with torch.no_grad():
        assert close(result, model(x))
    assert not library.available() or len(units) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.95, 0.99])
def test_large_pictures(name, sparsity):
    model = sparse(cigl.models.build(name, 1000, (3, 224, 224)), sparsity)
    fast = cigl.sparse_inference(model)
    for images in (1, 9):
        x = torch.randn(images, 3, 224, 224)
        equal(fast, model, x)
        with torch.no_grad():
            assert close(forced(model, x)[0], model(x))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_nets())
def test_any_net_on_the_kernels(net_and_input):
    net, x = net_and_input
    expected = dense_result(net, x)
    assert close(forced(net, x)[0], expected)
    assert close(cigl.sparse_inference(net)(x), expected)


def test_any_batch_and_shape_in_any_order():
    model = small()
    fast = cigl.sparse_inference(model)
    for shape in ((1, 16, 16), (8, 16, 16), (9, 16, 16), (3, 20, 12), (64, 16, 16), (1, 16, 16)):
        equal(fast, model, torch.randn(shape[0], 3, *shape[1:]))


def test_shapes_that_depend_on_values():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            y = torch.relu(self.first(x))
            rows = y[y.sum(1) > y.sum(1).mean()]
            return self.last(rows) / rows.size(0)

    model = sparse(Chosen(), 0.5)
    plan = None
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(16, 6)
        fast = cigl.sparse_inference(model, plan=plan)
        equal(fast, model, x)
        plan = plan or fast.plan()
        for unit in plan["shapes"][0]["units"]:
            unit["runs"] = "sparse"
    for _ in range(6):  # an engine that was planned for another number of rows
        equal(fast, model, torch.randn(16, 6))


def test_an_empty_batch():
    model = small()
    fast = cigl.sparse_inference(model)
    assert fast(torch.zeros(0, 3, 16, 16)).shape == (0, 10)


def test_inputs_that_are_not_contiguous():
    model = small()
    fast = cigl.sparse_inference(model)
    x = torch.randn(4, 16, 16, 3).permute(0, 3, 1, 2)
    equal(fast, model, x)
    equal(fast, model, torch.randn(8, 3, 32, 32)[::2, :, ::2, 1::2])


def test_the_model_and_the_engine_are_independent():
    model = small()
    before = copy.deepcopy(model.state_dict())
    model.train()
    fast = cigl.sparse_inference(model)
    x = torch.randn(2, 3, 16, 16)
    expected = fast(x)
    assert model.training
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert torch.equal(fast(x), expected)
    assert not list(fast.parameters())
    assert not fast.training
    assert fast.eval() is fast


def test_inference_only():
    fast = cigl.sparse_inference(small())
    assert not fast(torch.randn(2, 3, 16, 16, requires_grad=True)).requires_grad
    with pytest.raises(CiglError, match="inference"):
        fast.train()


def test_a_copy_computes_the_same():
    model = small()
    fast = cigl.sparse_inference(model)
    x = torch.randn(2, 3, 16, 16)
    expected = fast(x)
    twin = copy.deepcopy(fast)
    assert torch.equal(twin(x), expected)
    assert twin.plan() == fast.plan()


def test_buffers_of_few_shapes_are_kept(monkeypatch):
    monkeypatch.setattr(engines, "SCHEDULES", 2)
    monkeypatch.setattr(engines, "ENTRIES", 4)
    model = small()
    fast = cigl.sparse_inference(model)
    for images in (1, 2, 3, 1, 4, 5, 6, 7):
        equal(fast, model, torch.randn(images, 3, 16, 16))
    assert len(fast._schedules) == 2
    assert [entry["inputs"][0][0] for entry in fast.plan()["shapes"]] == [4, 5, 6, 7]


def test_several_threads_at_once():
    model = small()
    fast = cigl.sparse_inference(model)
    inputs = [torch.randn(1 + number % 3, 3, 16, 16) for number in range(12)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    wrong = []

    def work(numbers):
        for number in numbers:
            for _ in range(5):
                if not close(fast(inputs[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(range(start, 12, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_number_of_threads_follows_torch():
    model = small()
    fast = cigl.sparse_inference(model)
    x = torch.randn(9, 3, 16, 16)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            equal(fast, model, x)
    finally:
        torch.set_num_threads(before)
    assert len(fast.plan()["shapes"]) == 1  # the assignment is made once for a shape


@pytest.mark.parametrize("images", [1, 8])
def test_nan_reaches_the_output(images):
    model = sparse(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)), 0.3)
    x = torch.randn(images, 3, 8, 8)
    x[0, :, 4, 4] = torch.nan
    assert forced(model, x)[0][0].isnan().all()
    assert not forced(model, x)[0][1:].isnan().any()


def test_one_clear_error_for_wrong_inputs():
    fast = cigl.sparse_inference(small())
    with pytest.raises(CiglError, match=r"can't take inputs of shape \(2, 4, 16, 16\)"):
        fast(torch.randn(2, 4, 16, 16))
    with pytest.raises(CiglError, match="float32"):
        fast(torch.randn(2, 3, 16, 16).double())
    with pytest.raises(CiglError, match="CPU"):
        fast(torch.randn(2, 3, 16, 16, device="meta"))
    with pytest.raises(CiglError, match="1 inputs"):
        fast(torch.randn(2, 3, 16, 16), torch.randn(2))
    with pytest.raises(CiglError, match="must be a tensor"):
        fast([1.0])
    assert fast.plan()["shapes"] == []
    x = torch.randn(2, 3, 16, 16)
    fast(x)  # inputs that look like known ones are checked all the same
    for inputs, message in (((x, 3), "1 inputs"), ((None, x), "1 inputs"), ((x.to_sparse(),), "to_dense")):
        with pytest.raises(CiglError, match=message):
            fast(*inputs)


def test_one_clear_error_for_wrong_models():
    with pytest.raises(CiglError, match="Module"):
        cigl.sparse_inference(lambda x: x)
    with pytest.raises(CiglError, match="float32"):
        cigl.sparse_inference(nn.Linear(3, 3).double())
    with pytest.raises(CiglError, match="CPU"):
        cigl.sparse_inference(nn.Linear(3, 3, device="meta"))
    pruned = nn.Linear(3, 3)
    nn.utils.prune.l1_unstructured(pruned, "weight", 0.5)
    with pytest.raises(CiglError, match="permanent"):
        cigl.sparse_inference(pruned)


def test_a_module_that_can_not_be_traced_runs_dense_and_says_why():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    model = Branching()
    with pytest.warns(CiglWarning, match=r"x\.sum\(\) > 0"):
        fast = cigl.sparse_inference(model)
    equal(fast, model, torch.ones(2, 4))
    equal(fast, model, -torch.ones(2, 4))
    assert "x.sum() > 0" in fast.plan()["notes"][0]


def test_without_kernels_everything_runs_dense_and_says_so(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "no kernels here.")
    model = small()
    with pytest.warns(CiglWarning, match="no kernels here"):
        fast = cigl.sparse_inference(model)
    equal(fast, model, torch.randn(2, 3, 16, 16))
    plan = fast.plan()
    assert plan["kernels"] == "none: no kernels here."
    assert {unit["runs"] for unit in plan["shapes"][0]["units"]} == {"dense"}


def test_sparse_weights_are_held_once():
    model = sparse(nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 400)), 0.95)
    timed = cigl.sparse_inference(model)
    timed(torch.ones(2, 400))
    plan = timed.plan()
    for row in plan["shapes"][0]["units"]:
        row["runs"] = "sparse"  # whatever was faster
    fast = cigl.sparse_inference(model, plan)
    dense = sum(p.nbytes for p in model.parameters())
    assert fast.bytes > dense  # until it was compared with them
    fast(torch.ones(2, 400))
    assert fast.weight_bytes < fast.bytes < 0.2 * dense or not library.available()


def test_memory_can_be_asked_for_while_another_thread_calls(monkeypatch):
    fast = cigl.sparse_inference(small())
    for images in (1, 2):
        fast(torch.randn(images, 3, 16, 16))
    held, images = Schedule.bytes.fget, iter(range(3, 6))

    def bytes_during_a_call(schedule):
        thread = threading.Thread(target=fast, args=(torch.randn(next(images), 3, 16, 16),))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        return held(schedule)

    monkeypatch.setattr(Schedule, "bytes", property(bytes_during_a_call))
    assert fast.bytes > 0
    assert len(fast._schedules) == 4


def test_a_plan_is_plain_data_and_repeats_the_assignment(monkeypatch):
    model = small()
    fast = cigl.sparse_inference(model)
    x = torch.randn(4, 3, 16, 16)
    fast(x)
    plan = json.loads(json.dumps(fast.plan()))
    [entry] = plan["shapes"]
    assert entry["inputs"] == [[4, 3, 16, 16]]
    layer = entry["units"][1]
    assert layer["kind"] == "conv"
    assert layer["weight"] == [32, 32, 3, 3]
    assert layer["shape"] == [4, 32, 8, 8]
    assert 0.05 < layer["density"] < 0.15
    for runs in ("sparse", "dense"):
        for unit in entry["units"]:
            unit["runs"] = runs
        monkeypatch.setattr(engines, "assign", None)  # nothing is timed
        again = cigl.sparse_inference(model, plan=plan)
        equal(again, model, x)
        assert again.plan() == plan
        programs = [call for each in again._schedules.values() for call in each._calls if hasattr(call, "program")]
        assert bool(programs) == (runs == "sparse" and library.available())


def test_a_plan_of_something_else_is_refused():
    fast = cigl.sparse_inference(nn.Linear(3, 2))
    fast(torch.ones(1, 3))
    with pytest.raises(CiglError, match="another model"):
        cigl.sparse_inference(nn.Sequential(nn.Linear(3, 2)), plan=fast.plan() | {"shapes": small_plan()})
    for nonsense in ([], {}, {"version": 99, "shapes": []}, {"version": 1, "shapes": 3}):
        with pytest.raises(CiglError, match="not a plan"):
            cigl.sparse_inference(nn.Linear(3, 2), plan=nonsense)
    [entry] = fast.plan()["shapes"]
    [row] = entry["units"]
    for damaged in (
        {"inputs": 1},
        {"inputs": [[1, 3]], "units": [{"unit": "a", "runs": ["sparse"]}]},
        entry | {"inputs": ["13"]},
        entry | {"inputs": [[1, -3]]},
        entry | {"threads": []},
        *(entry | {"units": [row | {name: "x"}]} for name in ("shape", "weight", "nonzeros", "dense_ms")),
    ):
        with pytest.raises(CiglError, match="damaged"):
            cigl.sparse_inference(nn.Linear(3, 2), plan={"version": 1, "shapes": [damaged]})
    with pytest.raises(CiglError, match="another model"):
        cigl.sparse_inference(nn.Linear(3, 2), plan={"version": 1, "shapes": [entry | {"inputs": []}]})


def small_plan():
    return [{"inputs": [[1, 3]], "threads": 1, "units": [{"unit": "elsewhere", "runs": "sparse"}]}]
