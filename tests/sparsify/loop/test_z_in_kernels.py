"""A random mask Z that sparse kernels hold: training as with M*Z*W in the parameters, without touching them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from loops import assert_zero_outside, attach, batch, mlp, sgd
from torch import nn

from cigl.runtime.program import library
from cigl.runtime.training.patterns import Pattern
from cigl.sparsify.tensors.random_numbers import below, mix, signed, threshold

pytestmark = pytest.mark.skipif(not library.available(), reason="no kernels")


def momentum_sgd(model):
    return sgd(model, lr=0.05, momentum=0.9, weight_decay=0.01)


def make(kernels="sparse", optimizer=momentum_sgd, build=mlp, **options):
    torch.manual_seed(0)
    model = build()
    trainer = optimizer(model)
    return model, trainer, attach(model, trainer, "cigl", kernels=kernels, random_mask=0.3, **options)


def forward(model, number=1):
    x, y = batch(number)
    return F.cross_entropy(model(x), y)


def one_step(model, optimizer, number=1):
    optimizer.zero_grad()
    forward(model, number).backward()
    optimizer.step()


def held(sparse):
    return [layer.held_z is not None for layer in sparse.layers]


def warmed(**options):
    """Past the first steps, in which the kernels find out what reads the weights."""
    model, optimizer, sparse = make(**options)
    for number in range(1, 4):
        one_step(model, optimizer, number)
    return model, optimizer, sparse


def off(layer):
    return ~layer.random_mask & layer.mask


@given(
    st.lists(st.integers(0, 40000 * 50000 - 1), unique=True, max_size=300),
    st.integers(0, 2**64 - 1),
    st.floats(0, 0.99),
)
def test_the_draw_is_that_of_random_numbers(positions, number, share):
    positions = np.sort(np.array(positions, np.uint32))
    pattern = Pattern((40000, 50000), (50000, 1), positions)
    pattern.switch_off(number, int(share * 2**32))
    h = mix(torch.from_numpy(positions.view(np.int32)), signed(number), signed(number >> 32))
    assert np.array_equal(pattern.off != 0, below(h, threshold(share) - (1 << 31)))


def test_the_parameters_stay_as_they_are_and_z_still_acts():
    model, optimizer, sparse = warmed()
    before = [layer.weight.clone() for layer in sparse.layers]
    momentum = [optimizer.state[layer.parameter]["momentum_buffer"].clone() for layer in sparse.layers]
    optimizer.zero_grad()
    loss = forward(model, 4)
    assert all(held(sparse))
    for layer, weight in zip(sparse.layers, before, strict=True):
        assert torch.equal(layer.weight, weight)
        assert torch.equal(layer.true_weight(), weight)
    # the loss is that of M*Z*W in plain torch
    x, y = batch(4)
    first, second = (layer.weight * layer.random_mask for layer in sparse.layers)
    plain = F.cross_entropy(F.linear(F.linear(x, first, model[0].bias).relu(), second, model[2].bias), y)
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-6)
    loss.backward()
    switched = [off(layer) for layer in sparse.layers]
    assert all(each.any() for each in switched)
    assert_zero_outside(sparse)
    for layer, each in zip(sparse.layers, switched, strict=True):
        assert not layer.parameter.grad[each].any()
    optimizer.step()
    for layer, each, weight, state in zip(sparse.layers, switched, before, momentum, strict=True):
        moved = optimizer.state[layer.parameter]["momentum_buffer"]
        assert torch.equal(layer.weight[each], weight[each])
        assert torch.equal(moved[each], state[each])
        on = layer.mask & ~each
        assert (layer.weight[on] != weight[on]).any()
        assert (moved[on] != state[on]).any()
    assert not any(held(sparse))


def assert_same_training(change, steps=12, **options):
    """``change(model, optimizer, sparse, number)`` is one step of a loop; masked, and on kernels that hold some Z."""
    results = []
    for kernels in ("masked", "sparse"):
        model, optimizer, sparse = make(kernels, **options)
        taken = []
        if kernels == "sparse":
            hold = sparse._context.kernels.hold_z
            sparse._context.kernels.hold_z = lambda *args, hold=hold, taken=taken: (
                taken.append(hold(*args)) or taken[-1]
            )
        for number in range(1, steps + 1):
            change(model, optimizer, sparse, number)
        results.append({**model.state_dict(), **{f"mask {n}": m for n, m in sparse.masks.items()}})
    assert any(taken)
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_another_optimizer_sees_z_in_the_weights():
    def nadam(model):
        return torch.optim.NAdam(model.parameters(), lr=0.01)

    def loop(model, optimizer, sparse, number):
        one_step(model, optimizer, number)

    assert_same_training(loop, optimizer=nadam)


def test_clipping_accumulation_and_evaluation_in_between():
    def loop(model, optimizer, sparse, number):
        optimizer.zero_grad()
        for part in range(1 + (number > 8)):  # a gradient that adds up ends the holding
            forward(model, number + part).backward()
            model.eval()
            with torch.no_grad():
                forward(model, 50)
            model.train()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    assert_same_training(loop)


def test_a_part_called_apart_has_the_same_z():
    def loop(model, optimizer, sparse, number):
        optimizer.zero_grad()
        loss = forward(model, number)
        x, _ = batch(number)
        (loss + 0.1 * model[0](x).pow(2).mean()).backward()  # after the whole model, whose Z the kernels may hold
        optimizer.step()

    assert_same_training(loop)


def test_a_part_called_apart_before_and_after():
    def loop(model, optimizer, sparse, number):
        optimizer.zero_grad()
        x, _ = batch(number)
        if number % 3 == 0:
            (forward(model, number) + 0.1 * model[0](x).pow(2).mean()).backward()
        else:
            forward(model, number).backward()
        optimizer.step()

    assert_same_training(loop)


def test_a_loss_of_the_gradient_alone():
    """Of which kernels compute nothing but the outputs: the gradient, and its own, are torch's."""

    def loop(model, optimizer, sparse, number):
        x, _ = batch(number)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(model(x)[:, 0].sum(), x, create_graph=True)
        optimizer.zero_grad()
        (slope - x.detach()).square().mean().backward()
        optimizer.step()

    assert_same_training(loop)


def test_a_closure():
    def loop(model, optimizer, sparse, number):
        def closure():
            optimizer.zero_grad()
            loss = forward(model, number)
            loss.backward()
            return loss

        if number % 3 == 2:
            optimizer.zero_grad()
            forward(model, number).backward()  # Z is held when the closure begins
        optimizer.step(closure)

    assert_same_training(loop)


def test_a_batch_that_the_kernels_do_not_take():
    """Another dtype of the input in mid-training: torch runs that forward, with the same Z."""

    class Doubled(nn.Sequential):
        def forward(self, x):
            return super().forward(x.float())

    def loop(model, optimizer, sparse, number):
        x, y = batch(number)
        optimizer.zero_grad()
        F.cross_entropy(model(x.double() if number % 4 == 3 else x), y).backward()
        optimizer.step()

    def build():
        return Doubled(*mlp())

    assert_same_training(loop, build=build)


def test_a_penalty_from_the_first_step_on_keeps_z_in_the_weights():
    model, optimizer, sparse = make()
    for number in range(1, 5):
        optimizer.zero_grad()
        loss = forward(model, number)
        assert not held(sparse)[0]
        (loss + 0.01 * model[0].weight.pow(2).sum()).backward()
        optimizer.step()
    forward(model, 5)
    assert held(sparse) == [False, True]


def test_snapshots_and_checkpoints_of_a_step_with_a_held_z():
    """The average holds M*Z*W of the step, a checkpoint in mid-step M*W."""
    model, optimizer, sparse = warmed(epochs=2, steps_per_epoch=2, average_from=0.9, update_every=100)
    weights = [layer.weight.clone() for layer in sparse.layers]
    optimizer.zero_grad()
    loss = forward(model, 4)
    assert all(held(sparse))
    for layer, weight in zip(sparse.layers, weights, strict=True):
        assert torch.equal(model.state_dict()[layer.name], weight)
    loss.backward()
    switched = {layer.name: off(layer) for layer in sparse.layers}
    optimizer.step()
    average = sparse.finalize().state_dict()
    for name, each in switched.items():
        assert each.any()
        assert not average[name][each].any()
