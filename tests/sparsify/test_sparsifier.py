"""What must hold after every step, for every method, optimizer and way of looping."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops import assert_zero_outside, attach, batch, convnet, mlp, run, sgd, step, train
from torch import nn

import cigl

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=True),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=1e-2),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    # masked again after the step: their state or their update does not stay zero by itself
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "mixing": lambda p: Mixing(p),
}


class Mixing(torch.optim.Optimizer):
    """Not elementwise: every weight moves by the mean gradient of its tensor, and remembers it."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.state[p]["seen"] = self.state[p].get("seen", torch.zeros_like(p)) + p.grad.mean() + 1
            p -= 0.01 * (p.grad + p.grad.mean() + 0.1)


def counts(sparse):
    return {layer.name: int(layer.mask.sum()) for layer in sparse.layers}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("method", ["cigl", "rigl"])
def test_inactive_weights_gradients_and_state_are_zero_after_every_step(name, method):
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    sparse = attach(model, optimizer, method)
    assert_zero_outside(sparse)
    start, first = counts(sparse), sparse.masks
    for _ in train(model, optimizer, 20):
        assert_zero_outside(sparse)
        assert counts(sparse) == start
        assert all(p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(first[n], m) for n, m in sparse.masks.items())
    assert all(p.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_weight_with_z_0_does_not_move_in_that_step(name):
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    sparse = attach(model, optimizer, "cigl", random_mask=0.4, update_every=1000)
    for number in range(1, 8):
        before = {la.name: (la.true_weight(), {s.name: s.tensor.clone() for s in la.states()}) for la in sparse.layers}
        x, y = batch(number)
        F.cross_entropy(model(x), y).backward()
        off = {name: ~z for name, z in sparse.random_masks.items()}
        for layer in sparse.layers:
            assert layer.parameter[off[layer.name]].eq(0).all()
            assert layer.parameter.grad[off[layer.name]].eq(0).all()
        optimizer.step()
        optimizer.zero_grad()
        for layer in sparse.layers:
            weight, states = before[layer.name]
            where = off[layer.name]
            assert where.any()
            assert torch.equal(layer.weight[where], weight[where])
            assert not torch.equal(layer.weight, weight)
            for kind, state, fresh in layer.states():
                old = weight if fresh == "weight" else torch.full_like(state, fresh)  # of a new weight
                old = states.get(kind, old)
                assert torch.equal(state[where], old[where]), kind


@pytest.mark.parametrize("name", ["momentum", "adamw", "adam-fused"])
def test_grown_weights_start_at_zero_with_zero_state_and_others_keep_their_values(name):
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    sparse = attach(model, optimizer, "cigl")
    moved = 0
    for number in range(1, 16):
        before = sparse.masks
        step(model, optimizer, number)
        after = sparse.masks
        for layer in sparse.layers:
            grown = after[layer.name] & ~before[layer.name]
            moved += int(grown.sum())
            for tensor in [layer.weight, *(s.tensor for s in layer.states())]:
                assert tensor[grown].eq(0).all()
    assert moved > 10


def test_topology_never_sees_the_zeros_of_z():
    """With half of the weights switched off, a round that looked at M*Z*W would drop the largest."""
    seen = []

    class Watch(type(cigl.method("cigl"))):
        def keep_score(self, layer, active, step):
            scores = super().keep_score(layer, active, step)
            seen.append((layer.name, scores, layer.true_weight().flatten()[active].abs()))
            return scores

    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, Watch(random_mask=0.5, update_every=1, drop_fraction=cigl.constant(0.1)))
    raw = {layer.name: layer.weight.clone() for layer in sparse.layers}
    run(model, optimizer, 1)
    for name, scores, true in seen:
        assert torch.equal(scores, true)
        assert scores.count_nonzero() == (raw[name] != 0).sum()


METHODS = [name for name in cigl.methods() if name != "dense"]


@given(
    method=st.sampled_from(METHODS),
    sparsity=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.95, 0.999]),
    distribution=st.sampled_from(["uniform", "er", "erk"]),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(1, 5)),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_invariants_over_shapes_sparsities_and_methods(method, sparsity, distribution, sizes, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    total = sum(m.weight.numel() for m in model if isinstance(m, nn.Linear))
    sparse = attach(model, optimizer, method, sparsity=sparsity, distribution=distribution, seed=seed)
    target = round((1 - sparsity) * total)
    start = counts(sparse)
    if method != "gmp":
        assert sum(start.values()) == target
    previous = start
    for number in range(1, 41):
        x = torch.randn(4, sizes[0])
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        now = counts(sparse)
        if method == "gmp":
            assert all(layer.target <= now[layer.name] <= previous[layer.name] for layer in sparse.layers)
            previous = now
        else:
            assert now == start, number
        assert_zero_outside(sparse)
        assert all(layer.explored[layer.mask].all() for layer in sparse.layers)
    assert sum(counts(sparse).values()) == target
    final = sparse.finalize()
    for layer in sparse.layers:
        weight = dict(final.named_parameters())[layer.name]
        assert weight.count_nonzero() <= layer.target
        if method != "sup-tickets":
            assert weight[~layer.mask].eq(0).all()


@pytest.mark.parametrize("total", [10, 13, 31])
def test_gmp_follows_its_cubic_and_ends_at_the_target(total):
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "gmp", sparsity=0.9, epochs=1, steps_per_epoch=total, update_every=2)
    last = sparse.table.update_steps[-1]
    assert sparse.density == 1.0
    for number in train(model, optimizer, total):
        if number % 2 == 0 and number <= last:
            for layer in sparse.layers:
                density = layer.target / layer.size
                cubic = density + (1 - density) * (1 - number / last) ** 3
                assert int(layer.mask.sum()) == pytest.approx(cubic * layer.size, abs=0.51)
    assert counts(sparse) == {layer.name: layer.target for layer in sparse.layers}


def test_eval_predicts_with_m_w_and_the_same_z_goes_on():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.5)
    run(model, optimizer, 2)
    x, y = batch(7)
    model.eval()
    expected = model(x)
    model.train()
    training = model(x)
    assert not torch.allclose(training, expected)
    F.cross_entropy(training, y).backward()
    z = sparse.random_masks
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    model.train()
    assert torch.equal(model(x), training)  # a second micro-batch: the same Z
    assert all(torch.equal(z[name], again) for name, again in sparse.random_masks.items())


def test_an_eval_forward_between_forward_and_backward_is_an_error():
    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, "cigl")
    x, y = batch(1)
    loss = F.cross_entropy(model(x), y)
    model.eval()
    with pytest.warns(cigl.CiglWarning, match="such a backward would fail"):
        model(x)
    model.train()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # autograd's own
        loss.backward()
    optimizer.zero_grad()
    step(model, optimizer, 1)  # and the loop can go on


@pytest.mark.parametrize("case", ["a weight that autograd does not save", "two graphs", "a retained graph"])
def test_no_backward_uses_weights_of_an_eval_forward(case):
    model = nn.Sequential(nn.Linear(12, 4))
    optimizer = sgd(model)
    attach(model, optimizer, "cigl", random_mask=0.4)
    x, y = batch(1)
    loss = F.cross_entropy(model(x), y)
    if case == "two graphs":
        F.cross_entropy(model(x), y).backward()
    if case == "a retained graph":
        loss.backward(retain_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.eval()(x)
    model.train()
    with pytest.raises(cigl.CiglError, match="between a training forward and its backward"):
        loss.backward()


def test_eval_between_backward_and_step_is_fine():
    results = []
    for evaluate in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        attach(model, optimizer, "cigl", random_mask=0.3)
        for number in range(1, 7):
            x, y = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if evaluate:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    model.eval()(x)
                model.train()
            optimizer.step()
        results.append(model[0].weight.detach().clone())
    assert torch.equal(*results)


def test_an_abandoned_forward_is_no_error():
    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, "cigl")
    model(batch(1)[0])  # its loss is thrown away
    model.eval()
    with pytest.warns(cigl.CiglWarning):
        model(batch(1)[0])
    model.train()
    step(model, optimizer, 1)


def test_explored_only_grows_and_counts_every_weight_that_was_active():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "set", drop_fraction=0.5)
    ever, last = sparse.masks, sparse.explored
    assert last == sparse.density == pytest.approx(0.3, abs=0.002)
    for _ in train(model, optimizer, 20):
        ever = {name: ever[name] | mask for name, mask in sparse.masks.items()}
        total = sum(int(e.sum()) for e in ever.values()) / sum(e.numel() for e in ever.values())
        assert sparse.explored == total >= last
        last = total
    assert last > 0.4


def test_deterministic_given_the_seed_and_the_global_generator_is_untouched():
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        state = torch.get_rng_state()
        sparse = attach(model, optimizer, "cigl", seed=seed)
        run(model, optimizer, 40)
        final = sparse.finalize()
        assert torch.equal(state, torch.get_rng_state())
        results.append(torch.cat([p.flatten() for p in final.parameters()]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_works_under_deterministic_algorithms(layout):
    torch.use_deterministic_algorithms(True)
    try:
        model = convnet().to(memory_format=layout)
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl")
        run(model, optimizer, 6, one=lambda m, o, n: step(m, o, n, (8, 2, 8, 8)))
        assert_zero_outside(sparse)
    finally:
        torch.use_deterministic_algorithms(False)


def test_warns_when_training_runs_past_its_length():
    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, "rigl", epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, optimizer, 4)
    with pytest.warns(cigl.CiglWarning, match="past the 4 steps announced"):
        run(model, optimizer, 2, first=5)


@pytest.mark.parametrize("where", ["active", "inactive"])
def test_gradient_with_nan_refuses_the_update_and_changes_nothing(where):
    model = mlp()
    poison = []
    model[2].weight.register_hook(lambda grad: grad + poison[0] if poison else grad)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", update_every=2)
    run(model, optimizer, 1)
    mask = sparse.masks["2.weight"]
    # outside the mask p.grad, being masked, would not show it
    poison.append(torch.where(mask if where == "active" else ~mask, float("inf"), 0.0))
    x, y = batch(2)
    F.cross_entropy(model(x), y).backward()
    before = copy.deepcopy((model.state_dict(), sparse.masks, sparse.step))
    with pytest.raises(cigl.CiglError, match=r"dense gradient of 2\.weight has NaN or Inf in step 2"):
        optimizer.step()
    after = (model.state_dict(), sparse.masks, sparse.step)
    assert str(before) == str(after)
    poison.clear()
    optimizer.zero_grad()
    step(model, optimizer, 2)
    assert sparse.step == 2
    assert_zero_outside(sparse)


def test_detach_leaves_a_plain_model_with_m_w():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 2)
    masks = sparse.masks
    model(batch(3)[0])
    true = model.state_dict()
    sparse.detach()
    assert all(torch.equal(true[n], p) for n, p in model.named_parameters())
    assert all(dict(model.named_parameters())[n][~m].eq(0).all() for n, m in masks.items())
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_state_dict_hooks", "_load_state_dict_post_hooks")
    assert not any(getattr(m, h) for m in model.modules() for h in hooks)
    assert not any(p.__dict__ for p in model.parameters())
    assert not optimizer._optimizer_step_post_hooks
    step(model, optimizer, 3)
    assert any(dict(model.named_parameters())[n][~m].ne(0).any() for n, m in masks.items())
    attach(model, optimizer, "rigl")


def test_memory_between_steps_is_one_byte_per_weight_twice_and_the_active_positions():
    model = mlp(hidden=400, inputs=300)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", sparsity=0.95, update_every=2)
    for number in range(1, 5):
        step(model, optimizer, number, (16, 300))
        held = sum(
            value.numel() * value.element_size()
            for layer in sparse.layers
            for value in vars(layer).values()
            if isinstance(value, torch.Tensor) and value is not layer.parameter and value.dim()
        )
        weights = sum(layer.size for layer in sparse.layers)
        assert held == 2 * weights
        places = sum(active._places.nbytes for active in sparse._context.random_mask.active)
        assert places == 8 * sum(int(m.sum()) for m in sparse.masks.values())
        assert not sparse.collection.mean


def test_a_users_own_method_and_score():
    class Opposite(type(cigl.method("rigl"))):
        def grow_score(self, layer, step):
            return -layer.gradient.abs()

    def grown(method):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model)
        sparse = attach(model, optimizer, method)
        run(model, optimizer, 3)
        return sparse.masks["0.weight"]

    options = {"update_every": 3, "drop_fraction": cigl.constant(0.5)}
    assert not torch.equal(grown(Opposite(**options)), grown(cigl.method("rigl", **options)))


def test_dst_ee_prefers_weights_that_were_rarely_active():
    explored = {}
    for c in (0.0, 1e6):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model)
        method = cigl.method("dst-ee", c=c, update_every=1, drop_fraction=cigl.constant(0.3), update_until=1.0)
        sparse = attach(model, optimizer, method)
        run(model, optimizer, 8)
        explored[c] = sparse.explored
    assert explored[1e6] > explored[0.0] + 0.1


def test_snfs_keeps_the_momentum_of_the_dense_gradient():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "snfs", update_every=100, epochs=100)
    expected = torch.zeros(24, 12)
    for number in range(1, 6):
        x, y = batch(number)
        # the dense gradient, by the chain rule through a copy that knows no masks
        free = mlp()
        free.load_state_dict(model.state_dict())
        F.cross_entropy(free(x), y).backward()
        expected = 0.9 * expected + 0.1 * free[0].weight.grad
        step(model, optimizer, number)
    torch.testing.assert_close(sparse.layers[0].memory["momentum"], expected, atol=1e-7, rtol=1e-5)


def test_itop_waits_for_its_interval_and_goes_on_to_the_end():
    method = cigl.method("itop")
    table = method.timetable(50, 391)
    assert table.update_steps == [4000, 8000, 12000, 16000]
    assert table.fraction(4000) == pytest.approx(0.25 * (1 + torch.cos(torch.tensor(torch.pi * 4000 / 19550)).item()))


def test_a_grown_weight_jumps_under_adam_and_a_mean_second_moment_prevents_it():
    """Zero moments late in training: the first update is (1-b1)/sqrt(1-b2) = 3.2 learning rates."""
    jumps = {}
    for start in ("zero", "mean"):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        method = cigl.method("rigl", update_every=200, start_variance=start)
        sparse = attach(model, optimizer, method, epochs=100)
        before = sparse.masks
        run(model, optimizer, 200)
        for state in optimizer.state.values():
            state["step"].fill_(10_000)  # late enough that bias correction is over
        grown = {name: mask & ~before[name] for name, mask in sparse.masks.items()}
        run(model, optimizer, 1, first=201)
        moved = torch.cat([layer.weight[grown[layer.name]].abs() for layer in sparse.layers])
        jumps[start] = float(moved.max()) / 1e-3
    assert jumps["zero"] == pytest.approx(0.1 / 0.001**0.5, rel=0.02)
    assert jumps["mean"] < 0.5 * jumps["zero"]


def test_gradients_that_come_another_way_are_masked_too():
    for way in ("assigned", "noise"):
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl", random_mask=0.3)
        for number in range(1, 7):
            x, y = batch(number)
            loss = F.cross_entropy(model(x), y)
            if way == "assigned":
                parameters = list(model.parameters())
                for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    p.grad = g
            else:
                loss.backward()
                for p in model.parameters():
                    p.grad.add_(torch.randn_like(p), alpha=0.01)
            optimizer.step()
            assert_zero_outside(sparse)
            optimizer.zero_grad()


def test_attaching_between_backward_and_step():
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    F.cross_entropy(model(batch(1)[0]), batch(1)[1]).backward()
    sparse = attach(model, optimizer, "rigl")
    assert_zero_outside(sparse)
    optimizer.step()
    assert_zero_outside(sparse)


def test_training_in_eval_mode_is_refused_before_anything_moves():
    model = mlp().eval()
    optimizer = sgd(model)
    attach(model, optimizer, "cigl")
    before = copy.deepcopy(model.state_dict())
    F.cross_entropy(model(batch(1)[0]), batch(1)[1]).backward()
    with pytest.raises(cigl.CiglError, match=r"call model\.train\(\) before training"):
        optimizer.step()
    assert str(before) == str(model.state_dict())


def test_a_score_that_fails_leaves_the_loop_usable():
    class Fails(type(cigl.method("cigl"))):
        def grow_score(self, layer, step):
            if step == 3:
                raise ZeroDivisionError
            return super().grow_score(layer, step)

    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, Fails(update_every=3))
    run(model, optimizer, 2)
    with pytest.raises(ZeroDivisionError):
        step(model, optimizer, 3)
    assert sparse.step == 3
    assert sparse.random_masks is None
    run(model, optimizer, 4, first=4)
    assert_zero_outside(sparse)


def test_a_score_that_is_the_methods_own_memory_is_not_written_to():
    class Remembers(type(cigl.method("snfs"))):
        def grow_score(self, layer, step):
            return layer.memory["momentum"]

    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, Remembers(update_every=3))
    run(model, optimizer, 3)
    assert sparse.layers[0].memory["momentum"].isfinite().all()


def test_state_of_another_type_than_the_weights():
    class Master(torch.optim.Optimizer):
        """bfloat16 weights with a float32 momentum."""

        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                state = self.state[p]
                state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(p, dtype=torch.float32)) + p.grad
                p.add_(state["momentum"].to(p.dtype), alpha=-0.05)

    model = mlp().to(torch.bfloat16)
    optimizer = Master(model.parameters())
    sparse = attach(model, optimizer, "cigl")
    for number in range(1, 8):
        x, y = batch(number)
        F.cross_entropy(model(x.bfloat16()), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_zero_outside(sparse)


def test_frozen_layers_keep_their_topology():
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "set", layers={"0": 0.25})
    before = sparse.masks["0.weight"]
    run(model, optimizer, 6)
    assert torch.equal(before, sparse.masks["0.weight"])


def test_a_detached_sparsifier_says_so():
    model = mlp()
    sparse = attach(model, sgd(model), "rigl")
    sparse.detach()
    with pytest.raises(cigl.CiglError, match="was detached"):
        sparse.finalize()
