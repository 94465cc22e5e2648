"""Every optimizer of cases_optimizers.py learns, keeps zeros and what Z switches off, and resumes from a checkpoint."""

import copy
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import schedulefree
import torch
import torch.nn.functional as F
from cases_optimizers import CASES
from optimizers import MAKE, SAM
from torch import nn, optim

import cigl

HIDDEN, STEPS, EPOCH = 64, 60, 10  # 64 x 64: what torchao quantizes
WORKS = [case.name for case in CASES if case.outcome == "works"]


@pytest.fixture(autouse=True)
def _without_compilation(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # torchao compiles each step


def net():
    torch.manual_seed(0)
    hidden = [nn.Linear(12, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, 4))


def batch(number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn((64, 12), generator=generator)
    return x, x[:, :4].argmax(1)


def attach(model, optimizer, method="cigl", **options):
    defaults = {"sparsity": 0.5, "epochs": STEPS // EPOCH, "steps_per_epoch": EPOCH, "distribution": "uniform"}
    if cigl.method(method).update_every is not None:
        defaults["update_every"] = 10
    if cigl.method(method).random_mask:
        defaults["random_mask"] = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cigl.CiglWarning)
        return cigl.attach(model, optimizer, method, **(defaults | options))


def start(name, **options):
    model = net()
    optimizer = MAKE[name][0](list(model.parameters()))
    mode(optimizer, "train")
    return model, optimizer, attach(model, optimizer, **options) if options else None


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def mode(optimizer, name):
    """Schedule-free optimizers have modes."""
    if hasattr(optimizer, name):
        getattr(optimizer, name)()


def gradients(model, optimizer, number):
    x, y = batch(number)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()


def run(model, optimizer, steps, first=1):
    for number in range(first, first + steps):
        gradients(model, optimizer, number)
        optimizer.step()


def loss(model, optimizer):
    mode(optimizer, "eval")
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in map(batch, range(1000, 1004))) / 4


def assert_clean(sparse):
    for layer in sparse.layers:
        assert layer.weight[~layer.mask].eq(0).all(), layer.name
        for name, state, _ in layer.states():
            assert state[~layer.mask].unique().numel() == 1, f"{name} of {layer.name}"


def test_every_case_is_run_here():
    elsewhere = {name for name in WORKS if name not in MAKE}
    assert set(MAKE) <= set(WORKS)
    assert elsewhere == {
        "SAM, first_step and second_step",
        "SAM, step(closure)",
        "accelerate.prepare before attach",
        "ZeroRedundancyOptimizer",
    }
    assert {case.name for case in CASES if case.outcome == "refused"} == set(REFUSED)


@pytest.mark.parametrize("name", MAKE)
def test_it_learns_as_it_does_without_masks_and_zeros_are_exact(name):
    model, optimizer, _ = start(name)
    before = loss(model, optimizer)
    mode(optimizer, "train")
    model.train()
    run(model, optimizer, STEPS)
    dense = loss(model, optimizer)
    assert dense < 0.8 * before
    model, optimizer, sparse = start(name, method="cigl")
    first = sparse.masks
    run(model, optimizer, STEPS)
    assert sparse.step == STEPS
    assert any(not torch.equal(first[name], mask) for name, mask in sparse.masks.items())
    assert_clean(sparse)
    assert loss(model, optimizer) < dense + 0.6 * (before - dense)
    assert_clean(sparse)  # also at schedule-free's averaged weights


@pytest.mark.parametrize("name", MAKE)
def test_state_of_weights_that_z_switches_off_stays_and_nothing_else_is_touched(name):
    model, optimizer, sparse = start(name, method="cigl", update_every=1000)
    for number in range(1, 6):
        before = {layer.name: {s.name: s.tensor.clone() for s in layer.states()} for layer in sparse.layers}
        weights = {layer.name: layer.true_weight() for layer in sparse.layers}
        gradients(model, optimizer, number)
        off = {name: ~z for name, z in sparse.random_masks.items()}
        optimizer.step()
        for layer in sparse.layers:
            where = off[layer.name]
            assert torch.equal(layer.weight[where], weights[layer.name][where])
            for kind, state, fresh in layer.states():
                new = weights[layer.name] if fresh == "weight" else torch.full_like(state, fresh)
                old = before[layer.name].get(kind, new)
                assert torch.equal(state[where], old[where]), f"{kind} of {layer.name} in step {number}"
    found = {s.name for layer in sparse.layers for s in layer.states()}
    assert found == MAKE[name][1]
    assert (sparse.summary().optimizer == "") == name.startswith("torch.optim.")


@pytest.mark.parametrize("name", MAKE)
def test_a_checkpoint_resumes_bit_for_bit(name):
    results = []
    model, optimizer, sparse = start(name, method="cigl")
    run(model, optimizer, 10)
    saved = through_a_file([model.state_dict(), optimizer.state_dict(), sparse.state_dict()])
    for resumed in (False, True):
        if resumed:
            model, optimizer, sparse = start(name, method="cigl")
            with warnings.catch_warnings():
                warnings.simplefilter("error", cigl.CiglWarning)  # the optimizer's state is the one that was saved
                for part, state in zip((model, optimizer, sparse), saved, strict=True):
                    part.load_state_dict(state)
                mode(optimizer, "train")
                run(model, optimizer, 1, first=11)
        run(model, optimizer, 10 - resumed, first=11 + resumed)
        results.append((model.state_dict(), sparse.masks))
    for a, b in zip(*results, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_weight_grown_under_rprop_starts_from_the_first_learning_rate():
    model, optimizer, sparse = start("torch.optim.Rprop", method="rigl")
    grown = 0
    for number in range(1, 13):
        before = sparse.masks
        run(model, optimizer, 1, first=number)
        for layer in sparse.layers:
            where = layer.mask & ~before[layer.name]
            sizes = optimizer.state[layer.parameter]["step_size"][where]
            assert torch.equal(sizes, torch.full_like(sizes, 1e-3))
            grown += int(where.sum())
    assert grown > 50


def test_the_first_weights_that_prodigy_keeps_are_those_before_z():
    model, optimizer, sparse = start("Prodigy (prodigyopt)", method="cigl")
    first = {layer.name: layer.true_weight() for layer in sparse.layers}
    run(model, optimizer, 1)
    for layer in sparse.layers:
        assert torch.equal(optimizer.state[layer.parameter]["p0"].view(layer.shape), first[layer.name])


def test_states_can_be_named():
    model = net()
    optimizer = MAKE["SOAP"][0](list(model.parameters()))
    sparse = attach(model, optimizer, state={"exp_avg": 0.0, "nonsense": "weight"})
    run(model, optimizer, 4)
    assert {s.name for layer in sparse.layers for s in layer.states()} == {"exp_avg"}
    text = str(sparse.summary())
    assert "per weight: exp_avg;" in text
    assert "named, but not there: nonsense" in text


@pytest.mark.parametrize("state", ["exp_avg", 3, [1], {"exp_avg": "zero"}, {"exp_avg": None}])
def test_bad_names_of_states_are_refused(state):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(cigl.CiglError, match="state"):
        attach(model, optim.SGD(model.parameters(), lr=0.1), state=state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def sam_loop(sparse, model, optimizer, number):
    gradients(model, optimizer, number)
    z = sparse.random_masks
    optimizer.first_step(zero_grad=True)
    for layer in sparse.layers:
        kept = layer.mask if layer.held_z else layer.mask & z[layer.name]  # kernels may hold Z themselves
        assert layer.weight[~kept].eq(0).all()  # the perturbed weights keep their zeros
        assert layer.weight[layer.mask & z[layer.name]].ne(0).any()
    gradients(model, optimizer, number)
    assert all(torch.equal(z[key], value) for key, value in sparse.random_masks.items())
    optimizer.second_step(zero_grad=True)


def sam_closure_loop(sparse, model, optimizer, number):
    def closure():
        gradients(model, optimizer, number)

    closure()
    optimizer.step(closure)


@pytest.mark.parametrize("loop", [sam_loop, sam_closure_loop])
@pytest.mark.parametrize("kernels", ["masked", "sparse"])
def test_sam_counts_one_step_per_pair(loop, kernels):
    model = net()
    optimizer = SAM(model.parameters(), optim.SGD, lr=0.2, momentum=0.9)
    before = loss(model, optimizer)
    model.train()
    sparse = attach(model, optimizer, kernels=kernels)
    first = sparse.masks
    for number in range(1, 41):
        loop(sparse, model, optimizer, number)
        assert sparse.step == number
        assert_clean(sparse)
    assert any(not torch.equal(first[name], mask) for name, mask in sparse.masks.items())
    assert loss(model, optimizer) < 0.6 * before


def test_sam_moves_the_weights_as_without_masks():
    """With every weight active, two steps of SAM are what the same loop does without cigl."""
    results = []
    for attached in (False, True):
        model = net()
        optimizer = SAM(model.parameters(), optim.SGD, lr=0.1, momentum=0.9)
        if attached:
            attach(model, optimizer, "dense", sparsity=0.0, kernels="masked")
        for number in range(1, 9):
            gradients(model, optimizer, number)
            optimizer.first_step(zero_grad=True)
            gradients(model, optimizer, number)
            optimizer.second_step(zero_grad=True)
        results.append(model.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_accelerate_may_prepare_before_attach():
    import accelerate

    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    model, optimizer = accelerator.prepare(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    sparse = attach(model, optimizer)
    first = sparse.masks
    for number in range(1, 25):
        with accelerator.accumulate(model):
            x, y = batch(number)
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert sparse.step == 12
    assert any(not torch.equal(first[name], mask) for name, mask in sparse.masks.items())
    assert_clean(sparse)
    assert [s.name for s in sparse.layers[0].states()] == ["momentum_buffer"]
    accelerate.state.AcceleratorState._reset_state(True)


def test_the_state_that_zero_redundancy_optimizer_keeps_inside_is_followed(tmp_path):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = net()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1, momentum=0.9)
        sparse = attach(model, optimizer)
        run(model, optimizer, 20)
        assert sparse.step == 20
        assert_clean(sparse)
        for layer in sparse.layers:
            momentum = optimizer.optim.state[layer.parameter]["momentum_buffer"]
            assert [s.tensor.data_ptr() for s in layer.states()] == [momentum.data_ptr()]
            assert momentum[layer.mask].ne(0).any()
        optimizer._overlap_with_ddp = True
        with pytest.raises(cigl.CiglError, match="overlap_with_ddp=True moves weights during the backward"):
            attach(net(), optimizer)
    finally:
        torch.distributed.destroy_process_group()


def prodigy_slices(parameters):
    import prodigyopt

    return prodigyopt.Prodigy(parameters, slice_p=11)


def trac(parameters):
    import pytorch_optimizer

    return pytorch_optimizer.TRAC(optim.SGD(parameters, lr=0.1))


REFUSED = {
    "torch.optim.LBFGS": (optim.LBFGS, "LBFGS moves inactive weights"),
    "torch.optim.SparseAdam": (optim.SparseAdam, "SparseAdam needs sparse gradients"),
    "Prodigy with slice_p above 1": (prodigy_slices, "use slice_p=1"),
    "ScheduleFreeWrapper (schedulefree)": (
        lambda p: schedulefree.ScheduleFreeWrapper(optim.SGD(p, lr=0.1)),
        "is not a torch.optim.Optimizer",
    ),
    "TRAC": (trac, "TRAC keeps a copy of the first weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_and_nothing_changes(name):
    make, message = REFUSED[name]
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(cigl.CiglError, match=message):
        attach(model, make(list(model.parameters())))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    attach(model, optim.SGD(model.parameters(), lr=0.1))  # not "attached already"


def test_a_wrapper_without_hooks_and_without_an_optimizer_inside_is_refused():
    class Bare(optim.Optimizer):
        def __init__(self, params):
            self.param_groups = [{"params": list(params)}]
            self.state = {}

        def step(self, closure=None):
            pass

    model = net()
    with pytest.raises(cigl.CiglError, match="the steps of Bare can't be followed"):
        attach(model, Bare(model.parameters()))


@pytest.mark.slow
def test_zero_on_two_processes():
    """Each process keeps the state of some parameters: weights and masks are those of plain SGD, bit for bit."""
    worker = Path(__file__).with_name("zero_worker.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    run += ["--rdzv-endpoint=localhost:0", str(worker)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("is right") == 2
