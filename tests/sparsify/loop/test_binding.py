"""Copies, compilation and other processes: each works or refuses, nothing fails in silence."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loops import LARGE_MASKS, assert_zero_outside, attach, batch, convnet, mlp, run, sgd, states_equal, step
from torch import nn
from torch.optim.swa_utils import AveragedModel

import cigl
from cigl.runtime.program import library

MOMENTS = ["before", "after forward", "after backward", "in eval", "after step"]


def at_moment(moment):
    """A model in the middle of training, and M*W of that moment."""
    model = mlp(normalise=True)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", random_mask=0.4)
    run(model, optimizer, 4)
    true = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = batch(5)
    if moment in ("after forward", "after backward", "in eval", "after step"):
        loss = F.cross_entropy(model(x), y)
        if moment != "after forward":
            optimizer.zero_grad()
            loss.backward()
        if moment == "in eval":
            model.eval()(x)
        if moment == "after step":
            optimizer.step()
            true = {name: p.detach().clone() for name, p in model.named_parameters()}
    return model, optimizer, sparse, true


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", ["deepcopy", "averaged", "pickle", "torch.save", "state_dict", "part"])
def test_copies_at_any_moment_are_plain_and_hold_m_w(moment, way):
    model, _, sparse, true = at_moment(moment)
    if way == "state_dict":
        state = model.state_dict()
        assert list(state) == list(mlp(normalise=True).state_dict())
        assert all(torch.equal(state[name], value) for name, value in true.items())
        return
    if way == "part":
        assert torch.equal(model[0].state_dict()["weight"], true["0.weight"])
        assert torch.equal(copy.deepcopy(model[0]).weight, true["0.weight"])
        return
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "averaged":
        other = AveragedModel(model).module
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert all(torch.equal(value, true[name]) for name, value in other.named_parameters())
    assert not any("__deepcopy__" in p.__dict__ for p in other.parameters())
    # the copy is free: it trains without masks, and the attached model does not notice
    count = sparse.step
    other.train()
    optimizer = sgd(other)
    run(other, optimizer, 2)
    assert sparse.step == count
    assert other[0].weight[~sparse.masks["0.weight"]].ne(0).any()


def test_copies_do_not_keep_the_sparsifier_alive():
    model, optimizer, sparse, _ = at_moment("after forward")
    other = copy.deepcopy(model)
    reference = weakref.ref(sparse)
    del model, optimizer, sparse
    gc.collect()
    assert reference() is None
    other(batch(1)[0])


def test_training_is_not_disturbed_by_copies():
    results = []
    for disturb in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        attach(model, optimizer, "cigl")
        for number in range(1, 9):
            x, y = batch(number)
            loss = F.cross_entropy(model(x), y)
            if disturb:
                copy.deepcopy(model), model.state_dict(), AveragedModel(model), pickle.dumps(model)
            optimizer.zero_grad()
            loss.backward()
            if disturb:
                copy.deepcopy(model), model.state_dict()
            optimizer.step()
        results.append(model.state_dict())
    assert states_equal(*results)


def reference_run(steps=8, method="cigl"):
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, LARGE_MASKS[method])
    run(model, optimizer, steps)
    return model, sparse


WAYS = ["attach then compile", "compile then attach", "compiled and run before", "in place"]


# One way through the C++ compiler is enough: the others differ in tracing only.
@pytest.mark.parametrize(
    ("backend", "way"),
    [(b, w) for b in ("eager", "aot_eager") for w in WAYS] + [("inductor", "compiled and run before")],
)
def test_compiled_models(backend, way):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    options = {"random_mask": 0.3}
    if way == "attach then compile":
        sparse = attach(model, optimizer, "cigl", **options)
        called = torch.compile(model, backend=backend)
    elif way == "in place":
        sparse = attach(model, optimizer, "cigl", **options)
        model.compile(backend=backend)
        called = model
    else:
        called = torch.compile(model, backend=backend)
        if way == "compiled and run before":
            called(batch(1)[0])
            called.eval()(batch(1)[0])
            called.train()
        sparse = attach(called, optimizer, "cigl", **options)
    run(called, optimizer, 8)
    assert_zero_outside(sparse)
    expected, plain = reference_run()
    assert all(torch.equal(sparse.masks[name], mask) for name, mask in plain.masks.items())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    # in the middle of a step, eval predicts with M*W
    x, y = batch(9)
    F.cross_entropy(called(x), y).backward()
    true = copy.deepcopy(model)
    called.eval()
    with torch.no_grad():
        torch.testing.assert_close(called(x), true.eval()(x))


def test_one_graph_is_enough():
    """fullgraph=True, where the root is a class of the user's own; torch traces nn.Sequential's own hooks."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            return self.body(x)

    torch.compiler.reset()
    model = Own()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    called = torch.compile(model, backend="eager", fullgraph=True)
    run(called, optimizer, 3)
    assert sparse.step == 3
    assert_zero_outside(sparse)


def test_a_compiled_part_alone_is_noticed():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(classes=8), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.body(x))

    torch.compiler.reset()
    model = Parts()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    body = torch.compile(model.body, backend="eager")
    head = torch.compile(model.head, backend="eager")
    x, y = batch(1)
    F.cross_entropy(head(body(x)), y).backward()
    if sparse.random_masks is None:  # in silence, the loop would go on as RigL
        with pytest.raises(cigl.CiglError, match="no training forward of the model was seen"):
            optimizer.step()
    else:
        optimizer.step()
        assert_zero_outside(sparse)
    # inside the model, a compiled part is fine
    torch.manual_seed(0)
    model = Parts()
    model.body = torch.compile(model.body, backend="eager")
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    run(model, optimizer, 3)
    assert_zero_outside(sparse)


def test_what_finalize_returns_is_plain():
    model = convnet()
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 40, one=lambda m, o, n: step(m, o, n, (8, 2, 8, 8)))
    x, _ = batch(1, (8, 2, 8, 8))
    final = sparse.finalize([x]).eval()
    assert b"cigl" not in pickle.dumps(final)
    expected = final(x)
    assert torch.equal(copy.deepcopy(final)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(final))(x), expected)
    file = io.BytesIO()
    torch.save(final.state_dict(), file)
    file.seek(0)
    final.load_state_dict(torch.load(file, weights_only=True))
    exported = torch.export.export(final, (x,))
    torch.testing.assert_close(exported.module()(x), expected)
    torch.testing.assert_close(torch.compile(final, backend="aot_eager")(x), expected)


def test_data_parallel_is_refused():
    model = mlp()
    with pytest.raises(cigl.CiglError, match="use DistributedDataParallel"):
        attach(nn.DataParallel(model), sgd(model), "cigl")


DDP = Path(__file__).parents[1] / "ddp_worker.py"


@pytest.mark.parametrize(
    ("order", "kernels", "method"),
    [
        ("before", "masked", "cigl"),
        ("after", "masked", "cigl-rise"),
        ("accumulate", "masked", "cigl"),
        ("accumulate", "sparse", "cigl-rise"),
    ],
)
def test_two_processes_train_as_one_on_the_whole_batch(order, kernels, method, tmp_path):
    if kernels == "sparse" and not library.available():
        pytest.skip(library.reason())
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(DDP), order, str(rank), str(tmp_path), kernels, method], env=environment, stderr=-1
        )
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert results[0]["refused"]
    assert results[1]["refused"]
    assert results[0]["strength"] == results[1]["strength"] > 0
    for name, mask in results[0]["masks"].items():
        assert torch.equal(mask, results[1]["masks"][name])
    model, sparse = reference_run(10, method)
    for name, mask in sparse.masks.items():
        assert torch.equal(mask, results[0]["masks"][name])
    for name, value in model.state_dict().items():
        torch.testing.assert_close(results[0]["model"][name], value, atol=1e-5, rtol=1e-4)
