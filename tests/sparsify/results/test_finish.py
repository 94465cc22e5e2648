import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, convnet, mlp, run, sgd, states_equal, step

import cigl

LOADER = [batch(100), batch(101)]


def trained(method="cigl", steps=40, normalise=False, **options):
    model = mlp(normalise)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, method, **options)
    snapshots = []
    for number in range(1, steps + 1):
        x, y = batch(number)
        loss = F.cross_entropy(model(x), y)
        z = sparse.random_masks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 4 == 0 and number > 32:
            snapshots.append((z, copy.deepcopy(model.state_dict())))
    return model, sparse, snapshots


def test_the_average_is_the_mean_of_m_z_w_and_the_others_as_they_are():
    _, sparse, snapshots = trained()
    final = sparse.finalize().state_dict()
    assert len(snapshots) == sparse.collection.count == 2
    for name in ("0.weight", "2.weight"):
        expected = sum(state[name] * z[name] for z, state in snapshots) / 2
        torch.testing.assert_close(final[name], expected, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(final["0.bias"], sum(s["0.bias"] for _, s in snapshots) / 2, atol=1e-7, rtol=1e-6)


def test_the_average_of_the_expectation():
    _, sparse, snapshots = trained(cigl.method("cigl", average_of="p*W", random_mask=0.2, update_every=3))
    final = sparse.finalize().state_dict()
    expected = 0.8 * sum(state["0.weight"] for _, state in snapshots) / 2
    torch.testing.assert_close(final["0.weight"], expected, atol=1e-7, rtol=1e-6)


def test_finalize_leaves_the_attached_model_alone_and_training_may_go_on():
    model, sparse, _ = trained(steps=38)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(cigl.CiglWarning, match="finalizing early: 38 of the 40"):
        first = sparse.finalize()
    assert states_equal(before, model.state_dict())
    run(model, sparse.optimizer, 2, first=39)
    assert not states_equal(first.state_dict(), sparse.finalize().state_dict())
    assert all(p.grad is None for p in first.parameters())


def test_without_averages_the_current_weights():
    model, sparse, _ = trained("rigl")
    assert states_equal(sparse.finalize().state_dict(), model.state_dict())
    model, sparse, _ = trained("cigl")
    model(batch(1)[0])  # also while Z is in force
    assert states_equal(sparse.finalize(average=False).state_dict(), model.state_dict())


def test_weight_dropout_returns_w_or_its_expectation():
    model, sparse, _ = trained("rigl-wdp")
    assert torch.equal(sparse.finalize()[0].weight, model[0].weight)
    model, sparse, _ = trained(cigl.method("rigl-wdp", final_weights="p*W", random_mask=0.25, update_every=3))
    torch.testing.assert_close(sparse.finalize()[0].weight, 0.75 * model[0].weight)
    assert torch.equal(sparse.finalize()[0].bias, model[0].bias)


def test_tickets_are_superposed_and_cut_back_to_the_count():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "sup-tickets")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, sparse.learning_rate())
    tickets, rounds = [], []
    for number in range(1, 41):
        before = sparse.masks
        step(model, optimizer, number)
        scheduler.step()
        if sparse.collection.count > len(tickets):
            tickets.append(sparse.collection.mean["0.weight"].clone())
        if number >= 32 and any(not torch.equal(before[n], m) for n, m in sparse.masks.items()):
            rounds.append(number)
    assert sparse.table.first_cycle == 32
    assert rounds == [32]  # one cycle of two epochs: a round at its start, a ticket at its end
    assert len(tickets) == 1
    final = sparse.finalize()
    for layer in sparse.layers:
        weight = dict(final.named_parameters())[layer.name]
        mean = sparse.collection.mean[layer.name]
        chosen = mean.flatten().abs().argsort(descending=True, stable=True)[: layer.target]
        expected = torch.zeros_like(mean).flatten().index_put((chosen,), mean.flatten()[chosen]).view_as(mean)
        assert torch.equal(weight, expected)


def test_several_tickets_average_over_a_moving_mask():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, cigl.method("sup-tickets", cycle_epochs=1, update_every=3), average_from=0.5)
    taken = []
    for number in range(1, 41):
        step(model, optimizer, number)
        if sparse.collection.count > len(taken):
            x = sparse.collection.mean["0.weight"]
            taken.append(x.clone())
    assert len(taken) == 5
    assert (sparse.collection.mean["0.weight"] != 0).sum() > sparse.layers[0].target  # the union is larger
    assert (sparse.finalize()[0].weight != 0).sum() == sparse.layers[0].target


def test_members_of_cigl_without_averaging_are_its_snapshots():
    _, sparse, snapshots = trained("cigl-no-wma", normalise=True)
    members = sparse.members()
    assert len(members) == 2
    for member, (z, state) in zip(members, snapshots, strict=True):
        assert torch.equal(member[0].weight, state["0.weight"] * z["0.weight"])
        assert torch.equal(member[1].running_mean, state["1.running_mean"])
    assert torch.equal(sparse.members(1)[0][0].weight, members[1][0].weight)
    with pytest.raises(cigl.CiglError, match="2 snapshots were taken, 5 asked for"):
        sparse.members(5)


def test_members_of_mc_dropout_are_draws_of_z():
    model, sparse, _ = trained("rigl-mcdp", random_mask=0.3)
    members = sparse.members(200)
    weight = model[0].weight.detach()
    active = weight != 0
    off = torch.stack([(member[0].weight == 0) & active for member in members]).float()
    assert off.mean(0)[active].mean() == pytest.approx(0.3, abs=0.01)
    assert all(torch.equal(m[0].weight[m[0].weight != 0], weight[m[0].weight != 0]) for m in members)
    assert len({m[0].weight.detach().numpy().tobytes() for m in members}) == 200
    assert torch.equal(sparse.members(3)[2][0].weight, members[2][0].weight)


def test_methods_without_members_say_so():
    _, sparse, _ = trained("rigl")
    with pytest.raises(cigl.CiglError, match="neither snapshots nor a random mask"):
        sparse.members(3)
    _, sparse, _ = trained("rigl-mcdp")
    with pytest.raises(cigl.CiglError, match="say how many"):
        sparse.members()


@pytest.mark.parametrize("n", ["2", 2.0, True, 0, -1, [2], "a"])
def test_how_many_is_a_whole_number(n):
    method = cigl.method("cigl", second_moment=True, update_every=3)
    for sparse in (trained("cigl-no-wma")[1], trained("rigl-mcdp")[1]):
        with pytest.raises(cigl.CiglError, match=r"n is .*: say how many models"):
            sparse.members(n)
    _, sparse, _ = trained(method)
    with pytest.raises(cigl.CiglError, match=r"n is .*: say how many models"):
        sparse.sample_posterior(n)
    with pytest.raises(cigl.CiglError, match=r"n is None: say how many models"):
        sparse.sample_posterior(None)
    with pytest.raises(cigl.CiglError, match=r"seed is '2': give a whole number"):
        sparse.sample_posterior(2, seed="2")


def test_numpys_whole_numbers_are_welcome():
    assert len(trained("cigl-no-wma")[1].members(np.int64(2))) == 2
    assert len(trained("rigl-mcdp")[1].members(np.int32(3))) == 3


def test_the_posterior_has_the_moments_of_the_snapshots():
    method = cigl.method("cigl", second_moment=True, update_every=3, update_until=0.2)
    _, sparse, _ = trained(method, average_from=0.2)
    assert sparse.collection.count == 8
    draws = torch.stack([m[0].weight.detach() for m in sparse.sample_posterior(400)])
    mean, variance = sparse.collection.mean["0.weight"], sparse.collection.variance()["0.weight"]
    error = (variance / 400).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * error + 1e-6).all()
    inside = variance > 1e-8
    assert (draws.var(0)[inside] / variance[inside]).mean() == pytest.approx(1, abs=0.05)
    assert draws[:, ~sparse.masks["0.weight"]].eq(0).all()
    assert torch.equal(sparse.sample_posterior(2, seed=5)[1][0].weight, sparse.sample_posterior(2, seed=5)[1][0].weight)


def test_the_posterior_needs_its_second_moment():
    _, sparse, _ = trained("cigl")
    with pytest.raises(cigl.CiglError, match="second_moment=True"):
        sparse.sample_posterior()


def test_nothing_to_average_yet():
    _, sparse, _ = trained(steps=10)
    with pytest.raises(cigl.CiglError, match=r"10 of the 40 announced steps were seen; .* finalize\(average=False\)"):
        sparse.finalize()


@pytest.mark.parametrize("method", ["cigl", "cigl-no-rm", "sup-tickets", "rigl-wdp", "rigl-mcdp", "cigl-no-wma"])
def test_batch_norm_must_be_reestimated_where_weights_are_not_the_trained_ones(method):
    _, sparse, _ = trained(method, normalise=True)
    with pytest.raises(cigl.CiglError, match=r"finalize\(loader\)"):
        sparse.finalize()
    final = sparse.finalize(LOADER)
    x = torch.cat([LOADER[0][0], LOADER[1][0]])
    hidden = final[0](x)
    torch.testing.assert_close(final[1].running_mean, hidden.mean(0), atol=1e-5, rtol=1e-4)
    assert final[1].momentum == 0.1


def test_rigl_keeps_its_statistics_unless_asked():
    model, sparse, _ = trained("rigl", normalise=True)
    assert torch.equal(sparse.finalize()[1].running_mean, model[1].running_mean)
    assert not torch.equal(sparse.finalize(LOADER)[1].running_mean, model[1].running_mean)


def test_finalize_on_convolutions_runs():
    model = convnet()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 40, one=lambda m, o, n: step(m, o, n, (8, 2, 8, 8)))
    final = sparse.finalize([batch(1, (8, 2, 8, 8))])
    assert sum(int(p.count_nonzero()) for n, p in final.named_parameters() if n in sparse.masks) <= sum(
        layer.target for layer in sparse.layers
    )
