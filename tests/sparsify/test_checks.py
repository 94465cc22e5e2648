"""What was loaded belongs together, or the next step refuses."""

import pytest
import torch
from loops import attach, batch, fresh, mlp, run, saved, sgd, step

import cigl


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


def test_a_replaced_parameter_is_noticed():
    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, "cigl")
    model.load_state_dict(mlp().state_dict(), assign=True)
    with pytest.raises(cigl.CiglError, match=r"0\.weight was replaced after cigl\.attach"):
        step(model, optimizer, 1)
