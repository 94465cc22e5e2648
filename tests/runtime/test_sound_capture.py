"""Captured or not, an engine and a file compute what the model does: forwards that torch.fx alone would get wrong."""

from __future__ import annotations

import copy
import functools
import operator
import pickle
import random
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import close, sparse
from torch import nn

import cigl
from cigl.common.errors import CiglError, CiglWarning
from cigl.runtime.compile import tracing
from cigl.runtime.compile.stepping import Stepping
from cigl.runtime.engine import SparseInference
from cigl.runtime.remembered import recalled, remember

SWITCHES = {"relu": True}
SCALE = 2.0
ORDER = [1, 0]
DRAWS = random.Random(0)


class Settings:
    relu = True


class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.settings, self.names, self.scale, self.calls = {"relu": True}, ["a"], 2.0, 0
        self.draws, self.draw = random.Random(0), functools.partial(random.random)
        self.generator = np.random.default_rng(0)
        self.register_buffer("moved", torch.zeros(2))
        self._forward = (forward,)

    def forward(self, x):
        return self._forward[0](self, x)


def is_tensor_inside(value):
    return value * 3 if torch.is_tensor(value) else value


def asked_by_match(self, x):
    match self.first(x):
        case torch.Tensor() as found:
            return found * 2
    return x


def swallowed(self, x):
    h = self.first(x)
    try:
        return h * 2 if h.sum() * 0 == 0 else h
    except Exception:
        return h


def in_autocast(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.first(x).float()


def counts(self, x):
    self.calls += 1
    return self.first(x) * self.calls


def moves_its_buffer(self, x):
    self.moved.mul_(0.9).add_(self.first(x).mean())
    return self.first(x) - self.moved[0]


def closure():
    factors = {"a": 2.0}
    return lambda self, x: self.first(x) * factors["a"]


def after_many_variables(ending):
    """So many that the instructions for more have a prefix."""
    many = "".join(f"    v{i} = {i}\n" for i in range(300))
    found = {}
    exec(compile(f"def f(self, x):\n{many}    {ending}\n", "own.py", "exec"), globals(), found)
    return found["f"]


def by_another_name(self, x):
    kind = type
    return self.first(x) * (2 if kind(x) is torch.Tensor else 1)


def of_a_module(self, x):
    here = sys.modules[__name__]  # stored and loaded in one instruction, from Python 3.13 on
    return self.first(x) * here.SCALE


def imported(self, x):
    from test_sound_capture import SCALE as size

    return self.first(x) * size


def of_a_class_body(self, x):
    class Here:
        factors = tuple([SCALE for _ in range(1)])

    return self.first(x) * Here.factors[0]


def ends_watching(end):
    def forward(self, x):
        end(None)
        return self.first(x) * SCALE

    return forward


ASKING = {
    "isinstance": lambda self, x: F.relu(self.first(x)) if isinstance(x, torch.Tensor) else x,
    "isinstance of an attribute": lambda self, x: self.first(x) * (2 if isinstance(x.shape, torch.Size) else 1),
    "type": lambda self, x: self.first(x) * (2 if type(x) is torch.Tensor else 1),
    "callable": lambda self, x: self.first(x) * (2 if callable(x) else 1),
    "is_tensor": lambda self, x: is_tensor_inside(self.first(x)),
    "match": asked_by_match,
    "hasattr": lambda self, x: self.first(x) if hasattr(x, "logits") else self.second(x),
    "getattr": lambda self, x: self.first(x) if getattr(x, "logits", None) is not None else self.second(x),
    "grad_fn": lambda self, x: self.first(x) if x.grad_fn is None else self.second(x),
    "dtype is": lambda self, x: self.first(x) if x.dtype is torch.float32 else self.second(x),
    "grad mode": lambda self, x: self.first(x) if torch.is_grad_enabled() else self.second(x),
    "autocast": in_autocast,
    "a decorator": torch.autocast("cpu", dtype=torch.bfloat16)(lambda self, x: self.first(x).float()),
    "a dict": lambda self, x: F.relu(self.first(x)) if SWITCHES["relu"] else self.first(x),
    "a list": lambda self, x: self.first(x) * ORDER[0],
    "a variable": lambda self, x: self.first(x) * SCALE,
    "a class": lambda self, x: F.relu(self.first(x)) if Settings.relu else self.first(x),
    "a closure": closure(),
    "swallowed": swallowed,
    "type of a result": lambda self, x: self.first(x) * (2 if type(self.first(x)) is torch.Tensor else 1),
    "type of an item": lambda self, x: self.first(x) * (2 if type([self.first(x)][0]) is torch.Tensor else 1),
    "type by another name": by_another_name,
    "type behind a prefix": after_many_variables("v300 = x; return self.first(x) * (2 if callable(v300) else 1)"),
    "a class behind a prefix": after_many_variables("v300 = Settings; return self.first(x) * (2 if v300.relu else 1)"),
    "a module": of_a_module,
    "an import": imported,
    "globals": lambda self, x: self.first(x) * globals()["SCALE"],
    "a comprehension": lambda self, x: self.first(x) * sum([SCALE for _ in range(2)]),
    "a generator": lambda self, x: self.first(x) * sum(SCALE for _ in range(2)),
    "a function in it": lambda self, x: (lambda y: y * SCALE)(self.first(x)),
    "a class in it": of_a_class_body,
    "it ends the tracing": ends_watching(sys.settrace),
    "it ends the profiling": ends_watching(sys.setprofile),
}
OFTEN = {  # which differ from call to call
    "random numbers of Python": lambda self, x: self.first(x) * random.gauss(0, 1),
    "random.Random": lambda self, x: self.first(x) * self.draws.random(),
    "random.Random outside": lambda self, x: self.first(x) * DRAWS.random(),
    "numpy": lambda self, x: self.first(x) * np.random.rand(),
    "torch.rand": lambda self, x: self.first(x) + torch.rand(32),
    "a state": counts,
    "partial": lambda self, x: self.first(x) * self.draw(),
    "map": lambda self, x: self.first(x) * next(map(np.random.normal, [1.0])),
    "a buffer": moves_its_buffer,
    "a view of a buffer": lambda self, x: self.first(x) * self.moved[:1].add_(1),
}
RARELY = {  # a second call, as a rule, gives the same
    "random.Random": lambda self, x: self.first(x if self.draws.random() < 0.999 else -x),
    "numpy's generator": lambda self, x: self.first(x if self.generator.random() < 0.999 else -x),
    "random.Random outside": lambda self, x: self.first(x if DRAWS.random() < 0.999 else -x),
    "numpy": lambda self, x: self.first(x if np.random.rand() < 0.999 else -x),
}
FINE = {
    "a dict of its own": lambda self, x: F.relu(self.first(x)) if self.settings["relu"] else self.first(x),
    "a number of its own": lambda self, x: self.first(x) * self.scale,
    "training": lambda self, x: self.first(x) if not self.training else self.second(x),
    "shapes": lambda self, x: self.first(x.view(x.shape[0], -1)),
    "None": lambda self, x: self.first(x) if x is not None else self.second(x),
    "its own class": lambda self, x: self.first(x) if isinstance(self.second, nn.Linear) else x,
    "a comprehension": lambda self, x: sum([layer(x) * self.scale for layer in (self.first, self.second)]),
    "no_grad": torch.no_grad()(lambda self, x: self.second(F.relu(self.first(x)))),
    "type of a layer": lambda self, x: self.first(x) if type(self.first) is nn.Linear else x,
    "isinstance of a class": lambda self, x: x if isinstance(self.first, (type, str)) else self.first(x),
    "many variables": after_many_variables("v300 = self.first(x); return v300 * self.scale"),
    "operators": lambda self, x: operator.add(self.first(x), self.second(x)),
    "a note of a shape": lambda self, x: setattr(self, "size", x.shape) or self.first(x),
}


def net(forward) -> nn.Module:
    torch.manual_seed(0)
    return sparse(Net(forward), 0.9)


def quietly(make, *args, **kwargs):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        return make(*args, **kwargs), [str(each.message) for each in found if each.category is CiglWarning]


@torch.no_grad()
def expected(model, x):
    return copy.deepcopy(model)(x)


@pytest.mark.parametrize("examples", [False, True], ids=["alone", "examples"])
@pytest.mark.parametrize("name", ASKING)
def test_what_asks_is_computed_as_the_model_does(name, examples, tmp_path):
    model, x = net(ASKING[name]), torch.randn(5, 32)
    given = {"example_inputs": (torch.randn(3, 32),)} if examples else {}
    fast, said = quietly(cigl.sparse_inference, model, **given)
    assert close(fast(x), expected(model, x))
    if not examples:
        assert "example_inputs=(x,)" in said[0]
        assert "one by one" in said[0]
    _, said = quietly(cigl.save, model, tmp_path / "a.cigl", **given)
    assert examples or "example_inputs=(x,)" in said[0]
    if said:
        with pytest.raises(CiglError, match="weights alone"):
            cigl.load(tmp_path / "a.cigl")
    else:
        for engine in ("sparse", "dense"):
            assert close(cigl.load(tmp_path / "a.cigl", engine=engine)(x), expected(model, x))


@pytest.mark.parametrize("name", OFTEN)
def test_what_is_never_the_same_is_not_captured(name, tmp_path):
    model, x = net(OFTEN[name]), torch.randn(5, 32)
    state = torch.get_rng_state()
    fast, said = quietly(cigl.sparse_inference, model)
    assert torch.equal(state, torch.get_rng_state())
    assert "example_inputs=(x,)" in said[0]
    first, said = quietly(fast, x)
    assert not said
    assert not torch.equal(first, fast(x))
    assert quietly(cigl.save, model, tmp_path / "a.cigl")[1]


@pytest.mark.parametrize("name", RARELY)
def test_random_numbers_that_examples_do_not_show_are_not_captured(name, tmp_path):
    model, examples = net(RARELY[name]), (torch.randn(3, 32),)
    _, said = quietly(cigl.save, model, tmp_path / "a.cigl", example_inputs=examples)
    assert "draws random numbers that are not torch's" in said[0]
    with pytest.raises(CiglError, match="weights alone"):
        cigl.load(tmp_path / "a.cigl")


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("wrap", [lambda part: torch.compile(part, backend="eager"), torch.jit.script])
@pytest.mark.parametrize("examples", [False, True])
def test_a_part_that_was_compiled_or_scripted(wrap, examples):
    model, x = net(FINE["operators"]), torch.randn(5, 32)
    model = nn.Sequential(model, nn.ReLU(), wrap(sparse(nn.Sequential(nn.Linear(32, 32), nn.ReLU()), 0.9))).eval()
    fast, _ = quietly(cigl.sparse_inference, model, **({"example_inputs": (x,)} if examples else {}))
    assert close(quietly(fast, x)[0], model(x))


@pytest.mark.parametrize("name", FINE)
def test_what_is_the_models_own_is_captured(name, tmp_path):
    model, x = net(FINE[name]), torch.randn(5, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        fast = cigl.sparse_inference(model)
        cigl.save(model, tmp_path / "a.cigl")
        assert close(fast(x), expected(model, x))
        for engine in ("sparse", "dense"):
            assert close(cigl.load(tmp_path / "a.cigl", engine=engine)(x), expected(model, x))


def test_a_part_that_asks_leaves_its_neighbours_to_the_kernels():
    model, x = nn.Sequential(net(ASKING["hasattr"]), net(FINE["shapes"])).eval(), torch.randn(5, 32)
    fast, said = quietly(cigl.sparse_inference, model)
    assert said[0].startswith("0 can't be traced: its forward asks whether a value has 'logits'")
    assert close(fast(x), expected(model, x))
    assert type(fast) is SparseInference


def test_random_numbers_of_torch_that_follow_the_inputs_are_no_difference():
    model, x = net(lambda self, x: self.first(x) + torch.rand_like(x)), torch.randn(5, 32)
    fast, said = quietly(cigl.sparse_inference, model)
    first, more = quietly(fast, x)
    assert not said + more
    assert not torch.equal(first, fast(x))


FIRST = """
import torch, warnings, cigl
SCALE = 2.0
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * SCALE
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    cigl.sparse_inference(Net(4, 4))
assert "reads SCALE" in str(found[0].message), found
"""


def test_the_first_function_that_is_watched_is_seen_whole(tmp_path):
    """What Python reports may begin late: other tests would have begun it."""
    (tmp_path / "first.py").write_text(FIRST)
    subprocess.run([sys.executable, str(tmp_path / "first.py")], check=True)


def test_what_cannot_be_watched_is_not_captured(monkeypatch):
    monkeypatch.setattr(Stepping, "begin", lambda self, frame: None)
    assert "can't be watched" in quietly(cigl.sparse_inference, net(FINE["shapes"]))[1][0]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="which has no sys.monitoring")
def test_without_a_free_tool_nothing_is_captured():
    free = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]
    for tool in free:
        sys.monitoring.use_tool_id(tool, "a test")
    try:
        said = quietly(cigl.sparse_inference, net(FINE["shapes"]))[1]
    finally:
        for tool in free:
            sys.monitoring.free_tool_id(tool)
    assert "can't be watched" in said[0]
    assert not quietly(cigl.sparse_inference, net(FINE["shapes"]))[1]
    assert free == [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]


def test_a_debugger_is_given_back_what_it_had():
    def trace(*_):
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        said = quietly(cigl.sparse_inference, net(ASKING["a variable"]))[1]
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is trace
    assert "reads SCALE" in said[0]


# The comparison


def wrongly_captured(model, monkeypatch):
    """An engine with a graph that forgets a factor."""
    trace = tracing.Tracer.trace

    def wrong(self, *args):
        graph = trace(self, *args)
        for node in graph.nodes:
            if node.target is operator.mul:
                node.args = (node.args[0], 1.5)
        return graph

    monkeypatch.setattr(tracing.Tracer, "trace", wrong)
    fast = cigl.sparse_inference(model)
    monkeypatch.undo()
    return fast


@pytest.mark.parametrize("copied", [lambda fast: fast, copy.deepcopy])
def test_a_wrong_graph_is_noticed_at_the_first_call(monkeypatch, copied):
    model, x = net(FINE["a number of its own"]), torch.randn(5, 32)
    fast = copied(wrongly_captured(model, monkeypatch))
    given = x.clone()
    with pytest.warns(CiglWarning, match=r"computes something else than the model.*pass example_inputs=\(x,\)"):
        first = fast(x)
    assert close(first, expected(model, x))
    assert torch.equal(x, given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in (5, 7):
            x = torch.randn(images, 32)
            assert close(fast(x), expected(model, x))
    assert "something else" in fast.notes[-1]
    assert fast.plan()["shapes"] == []
    assert list(fast.plan()["layers"]) == ["first", "second"]
    assert close(copy.deepcopy(fast)(x), expected(model, x))


def test_many_threads_call_at_first(monkeypatch):
    model, x = net(FINE["a number of its own"]), torch.randn(5, 32)
    fast = wrongly_captured(model, monkeypatch)
    found = []
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        threads = [threading.Thread(target=lambda: found.append(fast(x))) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(timeout=60)
    assert len(found) == 8
    assert all(close(each, expected(model, x)) for each in found)


def test_wrong_kernels_are_noticed(monkeypatch, tmp_path):
    """In an engine, in the layers of a model in torch, in one from a file, and for inputs of another kind."""
    from cigl.runtime.schedule import Schedule

    right, broken = Schedule.__call__, [True]
    monkeypatch.setattr(Schedule, "__call__", lambda self, x: right(self, x) * (1.01 if broken[0] else 1))
    model, x = net(FINE["shapes"]), torch.randn(5, 32)
    cigl.save(model, tmp_path / "a.cigl")
    asking = net(ASKING["hasattr"])
    made = [(model, cigl.sparse_inference(model)), (model, cigl.load(tmp_path / "a.cigl"))]
    made.append((asking, quietly(cigl.sparse_inference, asking)[0]))
    for own, fast in made:
        with pytest.warns(CiglWarning, match="something else than the model"):
            assert close(fast(x), expected(own, x))
        assert close(fast(x), expected(own, x))
    broken[0], fast = False, cigl.sparse_inference(nn.Sequential(model.first))
    fast(x)
    broken[0] = True
    with pytest.warns(CiglWarning, match="something else than the model"):
        assert close(fast(x[None]), expected(model.first, x[None]))


def test_the_model_is_kept_for_one_comparison_alone():
    model = net(FINE["shapes"])
    calls = []
    fast = cigl.sparse_inference(model)
    fast._comparison.model.register_forward_hook(lambda *_: calls.append(1))
    for images in (5, 5, 7):
        fast(torch.randn(images, 32))
    assert calls == [1]
    assert fast._comparison.model is None
    other = pickle.loads(pickle.dumps(cigl.sparse_inference(nn.Sequential(nn.Linear(8, 4)))))
    assert other(torch.ones(2, 8)).shape == (2, 4)


def test_what_the_model_refuses_the_engine_refuses():
    def checks(self, x):
        torch._assert(x.shape[0] == 5, "five")
        return self.first(x)

    fast = cigl.sparse_inference(net(checks))
    with pytest.raises(CiglError, match="five"):
        fast(torch.randn(4, 32))
    assert fast(torch.randn(5, 32)).shape == (5, 32)


# Remembered examples


class Asks(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.layer, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32) if norm else nn.Identity()

    def forward(self, x):
        h = self.norm(self.layer(x))
        return h * 2 if torch.is_tensor(h) else h


@pytest.mark.parametrize("norm", [False, True])
def test_what_finalize_returns_is_saved_without_asking(norm, tmp_path):
    model = Asks(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = cigl.attach(model, optimizer, "static", sparsity=0.5, epochs=1, steps_per_epoch=1)
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 32), torch.zeros(64)), 16)
    state = torch.get_rng_state()
    final = attached.finalize(loader).eval()
    assert norm or torch.equal(state, torch.get_rng_state())
    assert recalled(final).args[0].shape == (2, 32)
    assert not final._forward_pre_hooks
    x = torch.randn(5, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        cigl.save(final, tmp_path / "a.cigl")
        assert close(cigl.load(tmp_path / "a.cigl")(x), expected(final, x))
        assert close(cigl.sparse_inference(final)(x), expected(final, x))
    assert recalled(copy.deepcopy(final)) is None


def test_what_is_remembered_is_small_and_fits():
    model = nn.Linear(4, 4)
    remember(model, (torch.zeros(8, 1 << 21),))
    assert recalled(model) is None
    remember(model, (torch.zeros(8, 4), object()))
    assert recalled(model) is None
    remember(model, (torch.zeros(8, 4),), {"length": torch.zeros(3)})
    assert recalled(model).args[0].shape == (8, 4)
    asks = net(ASKING["hasattr"])
    remember(asks, (torch.zeros(8, 31),))  # of a model that was changed since
    assert "one by one" in quietly(cigl.sparse_inference, asks)[1][0]


def test_a_wrapped_forward_is_named_as_the_reason():
    def given_by_name(forward):
        @functools.wraps(forward)
        def inner(self, *args, **kwargs):
            return forward(self, *args, **kwargs)

        return inner

    class Wrapped(nn.Linear):
        @given_by_name
        def forward(self, x, mask=None, scale=None, **more):
            return super().forward(x)

    said = quietly(cigl.sparse_inference, Wrapped(4, 4))[1]
    assert "torch.fx can't read a forward that is wrapped by another function" in said[0]
    assert "example_inputs=(x,)" in said[0]
