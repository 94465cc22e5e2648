"""Resume is bit-identical, and states that don't fit are named."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import attach, batch, mlp, run, sgd, states_equal

import cigl

METHODS = list(cigl.methods())


def fresh(method, optimizer="sgd", seed=0, **options):
    torch.manual_seed(0)
    model = mlp(normalise=True)
    kinds = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
    }
    opt = kinds[optimizer]()
    return model, opt, attach(model, opt, method, seed=seed, **options)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # tensors and plain values only


def saved(model, optimizer, sparse):
    return through_a_file((model.state_dict(), optimizer.state_dict(), sparse.state_dict()))


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
    worker = Path(__file__).with_name("resume_worker.py")
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


def test_attaching_after_loading_is_named():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 10)
    state = saved(model, optimizer, sparse)
    torch.manual_seed(0)
    again = mlp(normalise=True)
    again.load_state_dict(state[0])
    optimizer_again = sgd(again, momentum=0.9)
    with pytest.warns(cigl.CiglWarning, match="to resume, load the weights after attaching"):
        sparse_again = cigl.attach(
            again, optimizer_again, "cigl", sparsity=0.7, epochs=10, steps_per_epoch=4, update_every=3
        )
    sparse_again.load_state_dict(state[2])
    with pytest.raises(cigl.CiglError, match="only then load the model's, the optimizer's and the sparsifier's"):
        run(again, optimizer_again, 1, first=11)


def test_a_state_of_another_moment_is_named():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 10)
    early = saved(model, optimizer, sparse)
    run(model, optimizer, 1, first=11)
    late = saved(model, optimizer, sparse)
    again, optimizer_again, sparse_again = fresh("cigl")
    again.load_state_dict(late[0])
    optimizer_again.load_state_dict(late[1])
    sparse_again.load_state_dict(early[2])
    with pytest.raises(cigl.CiglError, match=r"0\.weight are not those .* \(step 10\)"):
        run(again, optimizer_again, 1, first=12)
    with pytest.raises(cigl.CiglError, match="not those"):
        sparse_again.finalize(average=False)


def test_weights_outside_the_mask_are_named():
    model, optimizer, _ = fresh("cigl")
    run(model, optimizer, 10)
    again, optimizer_again, _ = fresh("cigl", seed=1)
    again.load_state_dict(model.state_dict())  # and the sparsifier's state forgotten
    with pytest.raises(cigl.CiglError, match=r"non-zeros outside the mask of 0\.weight: load the sparsifier's state"):
        run(again, optimizer_again, 1, first=11)


def test_loading_the_models_own_weights_back_is_fine():
    model, optimizer, sparse = fresh("rigl")
    run(model, optimizer, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model(batch(5)[0])
    model.load_state_dict(state)
    run(model, optimizer, 4, first=5)
    assert sparse.step == 8


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


def test_an_optimizer_state_of_another_moment_is_named():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 4)
    early = saved(model, optimizer, sparse)
    run(model, optimizer, 8, first=5)
    late = saved(model, optimizer, sparse)
    again, optimizer_again, sparse_again = fresh("cigl")
    for target, state in ((again, late[0]), (optimizer_again, early[1]), (sparse_again, late[2])):
        target.load_state_dict(state)
    with (
        pytest.warns(cigl.CiglWarning, match=r"optimizer's state of 0\.weight is not the one that was saved"),
        pytest.raises(cigl.CiglError, match=r"state loaded into the optimizer has \d+ non-zeros \(momentum_buffer\)"),
    ):
        run(again, optimizer_again, 1, first=13)


def test_an_optimizer_state_that_was_not_loaded_is_warned_of():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 4)
    state = saved(model, optimizer, sparse)
    again, optimizer_again, sparse_again = fresh("cigl")
    again.load_state_dict(state[0])
    sparse_again.load_state_dict(state[2])
    with pytest.warns(cigl.CiglWarning, match="training will not continue as it would have"):
        run(again, optimizer_again, 1, first=5)


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
