"""Resume is bit-identical, and states that don't fit are named."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import attach, batch, fresh, mlp, run, saved, sgd, states_equal

import cigl

METHODS = list(cigl.methods())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stop", [3, 17, 33, 39])
def test_resume_is_bit_identical(method, stop):
    model, optimizer, sparse = fresh(method)
    run(model, optimizer, stop)
    state = saved(model, optimizer, sparse)
    run(model, optimizer, 40 - stop, first=stop + 1)
    again, optimizer_again, sparse_again = fresh(method)
    again.load_state_dict(state[0])
    optimizer_again.load_state_dict(state[1])
    sparse_again.load_state_dict(state[2])
    run(again, optimizer_again, 40 - stop, first=stop + 1)
    assert states_equal(model.state_dict(), again.state_dict())
    assert states_equal(sparse.masks, sparse_again.masks)
    assert sparse.explored == sparse_again.explored
    loader = [batch(1), batch(2)]
    assert states_equal(sparse.finalize(loader).state_dict(), sparse_again.finalize(loader).state_dict())


@pytest.mark.parametrize("stop", [5, 36])
def test_resume_in_a_new_process_is_bit_identical(stop, tmp_path):
    worker = Path(__file__).parents[1] / "resume_worker.py"
    for command in ("whole", f"first:{stop}", f"rest:{stop}"):
        subprocess.run([sys.executable, str(worker), command, str(tmp_path)], check=True, timeout=120)
    whole, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "rest"))
    assert states_equal(whole, resumed)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_the_loads_does_not_matter(order):
    model, optimizer, sparse = fresh("cigl", "adamw")
    run(model, optimizer, 10)
    state = saved(model, optimizer, sparse)
    run(model, optimizer, 5, first=11)
    objects = fresh("cigl", "adamw")
    for part in order:
        objects[part].load_state_dict(state[part])
    run(objects[0], objects[1], 5, first=11)
    assert states_equal(model.state_dict(), objects[0].state_dict())


def test_saved_in_the_middle_of_a_step():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 4)
    model(batch(5)[0])
    norm = {name: value.clone() for name, value in model.state_dict().items() if "running" in name or "num" in name}
    state = saved(model, optimizer, sparse)
    again, optimizer_again, sparse_again = fresh("cigl")
    again.load_state_dict(state[0])
    optimizer_again.load_state_dict(state[1])
    sparse_again.load_state_dict(state[2])
    for each, opt in ((model, optimizer), (again, optimizer_again)):
        each.load_state_dict(each.state_dict() | norm)
        run(each, opt, 6, first=5)
    assert states_equal(model.state_dict(), again.state_dict())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"method": "rigl"}, "method 'name' is 'cigl' there and 'rigl' here"),
        ({"sparsity": 0.8}, "settings 'sparsity' is 0.7 there and 0.8 here"),
        ({"random_mask": 0.2}, "method 'random_mask' is 0.1 there and 0.2 here"),
        ({"seed": 3}, "settings 'seed' is 0 there and 3 here"),
        ({"layers": {"0": 0.25}}, "settings 'layers'"),
    ],
)
def test_a_state_of_another_run_is_refused_with_the_first_difference(other, message):
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 5)
    state = sparse.state_dict()
    options = dict(other)
    _, _, target = fresh(options.pop("method", "cigl"), **options)
    before = str(target.state_dict())
    with pytest.raises(cigl.CiglError, match=message):
        target.load_state_dict(state)
    assert str(target.state_dict()) == before


def test_a_state_of_another_model_is_refused():
    _, _, sparse = fresh("cigl")
    other = mlp(hidden=30)
    target = attach(other, sgd(other), "cigl")
    with pytest.raises(cigl.CiglError, match=r"layer '0\.weight' is \(24, 12\) there and \(30, 12\) here"):
        target.load_state_dict(sparse.state_dict())


@pytest.mark.parametrize("state", [{}, {"version": 9, "layers": {}}, [1]])
def test_something_else_is_refused(state):
    _, _, sparse = fresh("cigl")
    with pytest.raises(cigl.CiglError, match=r"not a state of a cigl sparsifier|format version 9"):
        sparse.load_state_dict(state)


@pytest.mark.parametrize("what", ["a part", "a failing load", "the sparsifier's state"])
def test_loading_in_the_middle_of_a_step_loses_no_weight(what):
    model, optimizer, sparse = fresh("cigl", random_mask=0.4)
    run(model, optimizer, 4)
    true = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = sparse.state_dict()
    model(batch(5)[0])  # Z is in force
    if what == "a part":
        model[0].load_state_dict(model[0].state_dict())
    elif what == "a failing load":
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({"0.weight": true["0.weight"]})
    else:
        sparse.load_state_dict(state)
    assert all(torch.equal(true[name], p) for name, p in model.named_parameters())
    run(model, optimizer, 2, first=5)


@pytest.mark.parametrize("damage", ["step", "collection", "fingerprint", "mask", "count"])
def test_a_damaged_state_is_refused_whole(damage):
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 4)
    state = sparse.state_dict()
    run(model, optimizer, 4, first=5)
    if damage in ("step", "collection"):
        del state[damage]
    elif damage == "count":
        state["layers"]["3.weight"]["mask"][:] = True
    else:
        del state["layers"]["3.weight"][damage]
    before = str(sparse.state_dict())
    with pytest.raises(cigl.CiglError, match="take an earlier checkpoint"):
        sparse.load_state_dict(state)
    assert str(sparse.state_dict()) == before


def test_a_state_does_not_change_when_training_goes_on():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 36)
    state = sparse.state_dict()
    before = str(state)
    run(model, optimizer, 4, first=37)
    assert str(state) == before


def bits(value):
    """Everything in a nested state, exactly, in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return {name: bits(part) for name, part in value.items()}
    return [bits(part) for part in value] if isinstance(value, (list, tuple)) else value


def everything(model, optimizer, sparse):
    holding = list(model.parameters())  # in the middle of a step: M*Z*W
    return bits([holding, model.state_dict(), optimizer.state_dict(), sparse.state_dict(), sparse.random_masks])


LAYER = ("layers", "3.weight")
SMALL, FLOATS = torch.ones(2, 2, dtype=torch.bool), torch.zeros(4, 24)
DELETED = object()
CORRUPTIONS = [
    (method, path, value)
    for method, paths in {
        "cigl": {
            ("step",): [DELETED, None, -1, 1.5, "4", True, [4]],
            ("method",): [DELETED, None, {}, 3],
            ("settings",): [DELETED, None, {}, "x"],
            ("layers",): [None, {}, [], 5],
            LAYER: [DELETED, None, {}, 7],
            ("layers", "extra"): [{}],
            (*LAYER, "mask"): [DELETED, None, SMALL, FLOATS, 3, [True]],
            (*LAYER, "explored"): [DELETED, None, SMALL, FLOATS, FLOATS.bool(), 3],
            (*LAYER, "memory"): [DELETED, None, {"momentum": FLOATS}, 3],
            (*LAYER, "fingerprint"): [DELETED, None, "abc", 1.5],
            (*LAYER, "optimizer"): [DELETED, None, {"momentum_buffer": "abc"}, 3],
            (*LAYER, "surplus"): [1],
            ("places",): [DELETED, None, {"0.weight": "many"}, {"other": 3}, 3, {"0.weight": -1}],
            ("collection",): [DELETED, None, {}, [], 3],
            ("collection", "count"): [DELETED, None, -1, "2", 1.5, True, 0],
            ("collection", "mean"): [DELETED, None, {}, [1], 3],
            ("collection", "mean", "0.bias"): [DELETED, None, torch.zeros(3), torch.zeros(24, dtype=torch.int64), "x"],
            ("collection", "mean", "other"): [torch.zeros(3)],
            ("collection", "squares"): [DELETED, None, {"0.bias": torch.zeros(24)}],
        },
        "snfs": {
            (*LAYER, "memory"): [DELETED, None, {}, {"other": FLOATS}],
            (*LAYER, "memory", "momentum"): [DELETED, None, torch.zeros(2), FLOATS.double(), FLOATS.bool(), "x"],
            (*LAYER, "memory", "other"): [FLOATS],
            ("collection",): [{"count": 0, "mean": {}, "squares": {}}],
        },
        "cigl-no-wma": {
            ("collection", "models"): [DELETED, None, 3, [{}], [None]],
            ("collection", "models", 0, "0.bias"): [DELETED, None, torch.zeros(3), "x"],
            ("collection", "models", 0, "1.running_mean"): [None],
        },
    }.items()
    for path, values in paths.items()
    for value in values
]


@pytest.fixture(scope="module")
def late_states():
    """Of each method: a state near the end of training, which holds something of everything."""
    states = {}
    for method in {method for method, _, _ in CORRUPTIONS}:
        model, optimizer, sparse = fresh(method)
        run(model, optimizer, 37)
        states[method] = saved(model, optimizer, sparse)[2]
    return states


@pytest.mark.parametrize(("method", "path", "value"), CORRUPTIONS)
def test_a_refused_state_changes_nothing(method, path, value, late_states):
    state = copy.deepcopy(late_states[method])
    place = state
    for name in path[:-1]:
        place = place[name]
    if value is DELETED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    model, optimizer, sparse = fresh(method)
    run(model, optimizer, 4)
    model(batch(5)[0])  # in the middle of a step
    before = everything(model, optimizer, sparse)
    with pytest.raises(cigl.CiglError, match=r"take an earlier checkpoint|is of another run|not a state of a cigl"):
        sparse.load_state_dict(state)
    assert everything(model, optimizer, sparse) == before


def test_training_continues_after_a_refused_state_as_if_it_had_never_been_offered(late_states):
    results = []
    for offered in (False, True):
        model, optimizer, sparse = fresh("snfs")
        run(model, optimizer, 4)
        if offered:
            state = copy.deepcopy(late_states["snfs"])
            state["layers"]["3.weight"]["explored"] = SMALL
            with pytest.raises(
                cigl.CiglError, match=r"the explored mask of 3\.weight is torch\.bool of shape \(2, 2\)"
            ):
                sparse.load_state_dict(state)
        run(model, optimizer, 8, first=5)
        results.append(everything(model, optimizer, sparse))
    assert results[0] == results[1]
