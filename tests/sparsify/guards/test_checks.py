"""What was loaded belongs together, or the next step refuses."""

import pytest
import torch
from loops import attach, batch, fresh, mlp, run, saved, sgd, step
from torch import nn

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


def _replaced(model):
    model[2] = nn.Linear(24, 4)


def _other_shape(model):
    model[2] = nn.Linear(24, 5)


def _wrapped(model):
    model[2] = nn.Sequential(model[2], nn.Dropout(0.1))


def _compiled(model):
    model[2] = torch.compile(model[2], backend="eager")


def _removed(model):
    del model[2]


def _no_layer(model):
    model[2] = nn.Identity()


CHANGES = {
    _replaced: r"^2 was replaced after cigl\.attach, so 2\.weight is a weight without a mask: put the module back",
    _other_shape: r"^2 was replaced after cigl\.attach",
    _wrapped: r"^2\.weight is now 2\.0\.weight, because its module was wrapped or moved after cigl\.attach",
    _compiled: r"^2\.weight is now 2\._orig_mod\.weight",
    _removed: r"^2\.weight was removed from the model after cigl\.attach",
    _no_layer: r"^2\.weight was removed from the model after cigl\.attach",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", ["rigl", "cigl"])
@pytest.mark.filterwarnings("ignore:finalizing early")
def test_a_module_that_is_replaced_in_training_is_named(change, method):
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, method)
    ema = sparse.ema(0.9)
    run(model, optimizer, 36)
    before = model[0].weight.detach().clone()
    change(model)
    uses = (
        lambda: model(batch(1)[0]),
        optimizer.step,
        sparse.finalize,
        ema.finalize,
        sparse.summary,
        sparse.state_dict,
    )
    for use in uses:
        with pytest.raises(cigl.CiglError, match=CHANGES[change]):
            use()
    assert torch.equal(model[0].weight, before)
    assert sparse.step == 36
    sparse.detach()
    if change in (_no_layer, _removed):
        return
    optimizer = sgd(model)
    again = attach(model, optimizer, method, initial="magnitude")
    run(model, optimizer, 40, one=step_of_any)
    assert all(mask.sum() == layer.target for layer, mask in zip(again.layers, again.masks.values(), strict=True))
    again.finalize()


def step_of_any(model, optimizer, number):
    optimizer.zero_grad()
    model(batch(number)[0]).square().mean().backward()
    optimizer.step()


def test_a_module_that_was_put_back_trains_on():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 2)
    head = model[2]
    model[2] = nn.Linear(24, 4)
    with pytest.raises(cigl.CiglError, match="2 was replaced"):
        model(batch(3)[0])
    model[2] = head
    run(model, optimizer, 2, first=3)
    assert sparse.step == 4
    sparse.detach()
    model[2] = nn.Linear(24, 4)  # nobody's concern any more
    sparse.summary()


def test_the_root_may_be_a_layer_itself():
    model = nn.Linear(12, 4)
    sparse = attach(model, sgd(model), "rigl")
    model(batch(1)[0])
    assert sparse.summary().total.shape == (48,)
