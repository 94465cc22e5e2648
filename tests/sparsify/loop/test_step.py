"""A step is one object with a named phase; the end of the step drops it."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import assert_zero_outside, attach, batch, mlp, run, sgd, step

import cigl
from cigl.sparsify.loop.step import Phase, Update


def attached(method="cigl", **options):
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    return model, optimizer, attach(model, optimizer, method, **options)


def phase(sparse):
    return None if sparse._loop.step is None else sparse._loop.step.phase


def test_the_phases_of_a_step():
    model, optimizer, sparse = attached()
    x, y = batch(1)
    assert phase(sparse) is None
    loss = F.cross_entropy(model(x), y)
    assert phase(sparse) is Phase.AWAITING_GRADIENTS
    assert sparse._loop.step.number == 1
    loss.backward()
    assert phase(sparse) is Phase.READY
    model.eval()(x)
    assert phase(sparse) is Phase.SUSPENDED
    loss = F.cross_entropy(model.train()(x), y)  # a second micro-batch
    assert phase(sparse) is Phase.AWAITING_GRADIENTS
    loss.backward()
    with torch.no_grad():
        model(x)
    assert phase(sparse) is Phase.READY
    optimizer.step()
    assert phase(sparse) is None
    assert sparse.step == 1


def test_a_closure_goes_through_the_phases_inside_the_update():
    model, optimizer, sparse = attached()
    seen = []

    def closure():
        now = sparse._loop.step
        seen.append((now.phase, now.update))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch(1)[0]), batch(1)[1])
        seen.append((now.phase, now.update))
        loss.backward()
        seen.append((now.phase, now.update))
        return loss

    optimizer.step(closure)
    assert seen == [
        (Phase.NEW, Update.RUNNING),
        (Phase.AWAITING_GRADIENTS, Update.RUNNING),
        (Phase.READY, Update.CLOSURE),
    ]
    assert phase(sparse) is None


def test_gradients_without_a_training_forward_have_a_phase_of_their_own():
    model, optimizer, sparse = attached()
    model.eval()
    F.cross_entropy(model(batch(1)[0]), batch(1)[1]).backward()
    assert phase(sparse) is Phase.NO_FORWARD
    assert sparse.random_masks is None
    model.train()
    step(model, optimizer, 1)  # a training forward, and all is well
    assert sparse.step == 1


def test_nothing_of_a_step_is_left_at_its_end():
    model, optimizer, sparse = attached("cigl", update_every=1)
    for number in range(1, 4):
        F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
        assert all(layer.suspended is not None and layer.gradient is not None for layer in sparse.layers)
        optimizer.step()
        assert sparse._loop.step is None
        assert all(layer.suspended is None and layer.gradient is None for layer in sparse.layers)


def test_a_warning_made_an_error_at_the_end_of_training_loses_nothing():
    model, optimizer, sparse = attached(epochs=1)
    run(model, optimizer, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cigl.CiglWarning, match="past the 4 steps announced"):
            step(model, optimizer, 5)
    assert sparse.step == 5
    assert phase(sparse) is None
    assert all(torch.equal(layer.weight, layer.true_weight()) for layer in sparse.layers)
    run(model, optimizer, 2, first=6)
    assert_zero_outside(sparse)


def replace_gradient(parameter, in_place):
    """Another gradient by hand, where possible with the id that the old one had; whether that came out."""
    old = id(parameter.grad)
    parameter.grad = None
    kept = [torch.full_like(parameter, 0.5) for _ in range(20)]  # one of them takes the freed place
    parameter.grad = next((gradient for gradient in kept if id(gradient) == old), kept[0])
    for _ in range(in_place):  # clipping, noise: each counts the tensor's version up, as masking did
        parameter.grad.mul_(0.9)
    return id(parameter.grad) == old


@pytest.mark.parametrize("method", ["rigl", "cigl"])
@pytest.mark.parametrize("in_place", [0, 1, 2])
def test_a_gradient_replaced_by_hand_is_masked(method, in_place):
    model, optimizer, sparse = attached(method)
    reused = 0
    for number in range(1, 26):
        optimizer.zero_grad()
        x, y = batch(number)
        F.cross_entropy(model(x), y).backward()
        off = {layer.name: ~layer.random_mask for layer in sparse.layers}
        before = {layer.name: layer.true_weight() for layer in sparse.layers}
        reused += sum(replace_gradient(layer.parameter, in_place) for layer in sparse.layers)
        optimizer.step()
        assert_zero_outside(sparse)
        for layer in sparse.layers:
            here = off[layer.name] & layer.mask
            assert torch.equal(layer.weight[here], before[layer.name][here])
    assert reused > 10  # or the test would show nothing


def test_a_masked_gradient_is_not_kept_alive():
    model, optimizer, sparse = attached()
    step(model, optimizer, 1)
    masked = [layer._masked for layer in sparse.layers]
    assert all(mark.tensor() is not None for mark in masked)
    optimizer.zero_grad()
    assert all(mark.tensor() is None for mark in masked)


def test_what_a_user_sees_of_a_sparsifier():
    _, _, sparse = attached()
    assert {name for name in dir(sparse) if not name.startswith("_")} == {
        *("model", "optimizer", "method", "table", "layers", "settings", "step", "collection", "kernels"),
        *("masks", "random_masks", "mask_rates", "density", "explored", "summary", "learning_rate"),
        *("needs_loader", "finalize", "members", "sample_posterior", "ema"),
        *("mask_rate", "preview", "controller", "observe", "validate"),
        *("state_dict", "load_state_dict", "detach"),
    }
