"""Held-out examples in a training: what they change, and what they must not touch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, fresh, mlp, run, saved, sgd, states_equal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cigl
from cigl.runtime.program import library

EAGER = cigl.method("cigl-auto", patience=0, gain=20.0, update_every=3)


def held_out(wrong=0.5, count=400, shuffle=True):
    """Half of the labels are wrong, so that a network that learns the others is over-confident."""
    x, y = batch(1000, (count, 12))
    y = torch.where(torch.arange(count) < wrong * count, (y + 1) % 4, y)
    return DataLoader(TensorDataset(x, y), batch_size=100, shuffle=shuffle)


def test_a_network_that_is_over_confident_gets_a_random_mask():
    model, optimizer, sparse = fresh(EAGER, validation=held_out())
    assert sparse.mask_rate == 0
    run(model, optimizer, 40)
    assert [each.step for each in sparse.controller.history] == list(range(5, 40, 4))
    assert max(range(9), key=lambda number: sparse.controller.history[number].strength) < 8  # before averaging begins
    assert 0 < sparse.mask_rate < 0.75
    assert all(0 <= rate <= 0.75 for rate in sparse.mask_rates.values())
    assert "over-confident by" in str(sparse.summary())


def test_one_that_is_not_trains_as_if_there_were_no_random_mask():
    """Bit by bit, with a loader that shuffles and a model with batch norm: its evaluation leaves no trace."""
    results = []
    for validation in (None, held_out(wrong=0.0)):
        torch.manual_seed(0)
        model = mlp(normalise=True)
        optimizer = sgd(model)
        sparse = attach(model, optimizer, EAGER, validation=validation)
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cigl.CiglWarning)
            run(model, optimizer, 40)
        assert model.training
        results.append((model.state_dict(), sparse.masks, sparse.finalize([batch(1)]).state_dict(), torch.rand(3)))
    assert sparse.controller.strength == 0
    assert len(sparse.controller.history) == 9
    for one, other in zip(*(result[:3] for result in results), strict=True):
        assert states_equal(one, other)
    assert torch.equal(results[0][3], results[1][3])


@pytest.mark.parametrize("stop", [4, 18, 27, 39])
def test_a_resumed_training_is_the_same_bit_by_bit(stop):
    model, optimizer, sparse = fresh(EAGER, validation=held_out())
    run(model, optimizer, stop)
    state = saved(model, optimizer, sparse)
    run(model, optimizer, 40 - stop, first=stop + 1)
    again, optimizer_again, sparse_again = fresh(EAGER, validation=held_out())
    again.load_state_dict(state[0])
    optimizer_again.load_state_dict(state[1])
    sparse_again.load_state_dict(state[2])
    run(again, optimizer_again, 40 - stop, first=stop + 1)
    assert sparse.controller.strength > 0
    assert sparse.controller == sparse_again.controller
    assert states_equal(model.state_dict(), again.state_dict())
    loader = [batch(1), batch(2)]
    assert states_equal(sparse.finalize(loader).state_dict(), sparse_again.finalize(loader).state_dict())


def test_observed_batches_do_the_same_as_a_loader():
    model, optimizer, sparse = fresh(EAGER, validation=held_out(shuffle=False))
    run(model, optimizer, 40)
    other, optimizer, by_hand = fresh(EAGER)
    for epoch in range(10):
        run(other, optimizer, 4, first=4 * epoch + 1)
        network = by_hand.preview()
        for x, y in held_out(shuffle=False):
            by_hand.observe(network(x), y)
    assert by_hand.controller == sparse.controller
    assert states_equal(model.state_dict(), other.state_dict())


def test_a_preview_is_the_expectation_of_the_masked_network():
    model, optimizer, sparse = fresh(EAGER, validation=held_out())
    run(model, optimizer, 30)
    preview, rates = sparse.preview(), sparse.mask_rates
    assert any(rates.values())
    for name, rate in rates.items():
        assert torch.equal(preview.get_parameter(name), model.get_parameter(name) * (1 - rate))
    assert not preview.training
    model(batch(31)[0])  # Z is in force
    again = sparse.preview()
    assert all(torch.equal(again.get_parameter(name), preview.get_parameter(name)) for name in rates)


def test_labels_of_tokens_may_be_left_out():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x).unflatten(0, (-1, 4))

    model = Tokens()
    sparse = attach(model, sgd(model), "cigl-auto")
    x, y = batch(1)
    y = y.view(4, 4).clone()
    y[0] = -100
    sparse.validate([(x, y)])
    assert sparse.controller.pending[0] == 12


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([(torch.full((4, 12), torch.nan), torch.zeros(4, dtype=torch.long))], "NaN or infinity"),
        ([batch(1), (batch(2)[0], torch.full((16,), 7))], "labels run from 7 to 7"),
        ([batch(1)[0]], "no labels"),
        (iter(()), "there are none"),
    ],
)
def test_examples_that_cannot_be_used_end_no_training(batches, words):
    model, optimizer, sparse = fresh(EAGER)
    run(model, optimizer, 4)
    before = sparse.controller.state_dict()
    with pytest.warns(cigl.CiglWarning, match=f"the random mask stays as it was: .*{words}"):
        sparse.validate(batches)
    assert sparse.controller.state_dict() == before


@pytest.mark.parametrize(
    ("method", "validation", "words"),
    [
        ("cigl", [batch(1)], "'cigl' makes no use of held-out examples"),
        ("cigl-auto", iter([batch(1)]), "only once"),
        ("cigl-auto", [], "no batches"),
    ],
)
def test_a_loader_that_is_of_no_use_is_refused_before_anything_is_attached(method, validation, words):
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(cigl.CiglError, match=words):
        attach(model, sgd(model), method, validation=validation)
    assert states_equal(model.state_dict(), before)


def test_other_methods_observe_nothing():
    _, _, sparse = fresh("cigl-rise")
    assert sparse.controller is None
    with pytest.raises(cigl.CiglError, match="makes no use of held-out examples"):
        sparse.observe(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))


def test_without_held_out_examples_it_is_said_once_that_there_is_no_mask():
    model, optimizer, sparse = fresh("cigl-auto")
    assert "no held-out examples were seen yet" in str(sparse.summary())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(model, optimizer, 40)
    assert [str(each.message).split(",")[0] for each in caught] == ["cigl-auto has seen no held-out examples"]
    assert sparse.mask_rate == 0
    plain, optimizer, rigl = fresh("rigl")
    run(plain, optimizer, 40)
    assert states_equal(model.state_dict(), plain.state_dict())
    assert states_equal(sparse.masks, rigl.masks)


def test_short_trainings_have_topology_rounds_of_their_own():
    model = mlp()
    sparse = cigl.attach(model, sgd(model), "rigl", sparsity=0.7, epochs=10, steps_per_epoch=4)
    assert sparse.method.update_every == 3
    assert len(sparse.table.update_steps) == 10


def test_training_goes_on_under_a_mask_that_follows():
    """Its gradients are those of a masked step: nothing about Z depends on where its rate came from."""
    model, optimizer, sparse = fresh(EAGER, validation=held_out())
    run(model, optimizer, 36)
    x, y = batch(37)
    F.cross_entropy(model(x), y).backward()
    assert any(not z[sparse.masks[name]].all() for name, z in sparse.random_masks.items())
    optimizer.step()


def test_sparse_kernels_see_a_mask_that_begins_in_the_middle():
    if not library.available():
        pytest.skip(library.reason())
    results = []
    for kernels in ("masked", "sparse"):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        method = cigl.method("cigl-auto", patience=0, gain=60.0, update_every=3)
        sparse = attach(model, optimizer, method, kernels=kernels, validation=held_out(wrong=0.9, shuffle=False))
        run(model, optimizer, 40)
        assert {row.kernels for row in sparse.summary().rows} == {kernels}
        assert sparse.controller.history[0].step == 5  # before, there was none
        assert sparse.mask_rate > 0.3
        results.append((sparse.masks, model[0].weight.detach()))
    assert states_equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-4)
