"""Whoever writes to the weights from outside: the zeros stay, and it is said."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, mlp, run, sgd, states_equal, step
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cigl


class Lookahead:
    """Zhang et al. 2019, as it is written around an optimizer: every k steps the weights go half-way back."""

    def __init__(self, optimizer, k=5):
        self.optimizer, self.k, self.count = optimizer, k, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in optimizer.param_groups]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.optimizer.param_groups, self.slow, strict=True):
                for p, q in zip(group["params"], slow, strict=True):
                    q.lerp_(p.detach(), 0.5)
                    p.data.copy_(q)  # as libraries do it: it leaves no trace


class Noise:
    """Noise on the weights after each step."""

    def __init__(self, optimizer, visibly):
        self.optimizer, self.visibly = optimizer, visibly

    def zero_grad(self):
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for p in self.optimizer.param_groups[0]["params"]:
            (p if self.visibly else p.data).add_(torch.randn_like(p), alpha=1e-3)


def built(method="rigl", **options):
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    return model, optimizer, attach(model, optimizer, method, **options)


def density(model, sparse):
    parameters = dict(model.named_parameters())
    return sum(int(parameters[n].count_nonzero()) for n in sparse.masks) / sum(m.numel() for m in sparse.masks.values())


def assert_announced(final, sparse):
    parameters = dict(final.named_parameters())
    for layer in sparse.layers:
        assert parameters[layer.name][~layer.mask].eq(0).all()
        assert int(parameters[layer.name].count_nonzero()) <= layer.target


WRAPPERS = {
    "lookahead": Lookahead,
    "noise": lambda optimizer: Noise(optimizer, visibly=True),
    "noise through .data": lambda optimizer: Noise(optimizer, visibly=False),
}


@pytest.mark.parametrize("wrapper", list(WRAPPERS))
@pytest.mark.parametrize("method", ["static", "rigl", "cigl"])
def test_weights_written_after_a_step_keep_their_zeros(wrapper, method):
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    around = WRAPPERS[wrapper](optimizer)  # its copies are of the dense weights
    sparse = attach(model, optimizer, method)
    seen = []
    for number in range(1, 41):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(model, around, number)
        seen += [(number, str(w.message)) for w in caught if issubclass(w.category, cigl.CiglWarning)]
    assert [text for _, text in seen if "outside the mask of 0.weight" in text]
    assert seen[0][0] <= 10  # within the first steps
    assert len(seen) == 1  # and once
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        final = sparse.finalize()
    assert_announced(final, sparse)
    assert density(final, sparse) == pytest.approx(sparse.density, abs=0.02)


def test_once_it_was_said_every_forward_has_the_zeros():
    """Noise that begins late and leaves no trace is found within eight steps, and then masked in each."""
    model, optimizer, sparse = built("static")
    dense = []
    model.register_forward_pre_hook(lambda *_: dense.append(density(model, sparse) > sparse.density))
    run(model, optimizer, 20)
    noisy = Noise(optimizer, visibly=False)
    with pytest.warns(cigl.CiglWarning, match="outside the mask"):
        run(model, noisy, 9, first=21)
    dense.clear()
    run(model, noisy, 11, first=30)
    assert not any(dense)
    assert len(dense) == 11


def test_the_next_forward_has_the_zeros_again():
    model, optimizer, sparse = built("rigl")
    run(model, optimizer, 2)
    with torch.no_grad():
        model[2].weight.add_(1e-3)
    with pytest.warns(cigl.CiglWarning, match=r"\d+ non-zeros outside the mask of 2\.weight"):
        model(batch(3)[0])
    assert model[2].weight[~sparse.masks["2.weight"]].eq(0).all()
    assert model[2].weight[sparse.masks["2.weight"]].ne(0).any()


def test_one_stray_weight_in_a_large_layer_is_found_before_a_round():
    model = mlp(hidden=400, inputs=300)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "rigl", update_every=4)
    outside = (~sparse.masks["0.weight"]).nonzero()[-1]
    model[0].weight.data[tuple(outside)] = 1.0
    with pytest.warns(cigl.CiglWarning, match=r"1 non-zero outside the mask of 0\.weight"):
        run(model, optimizer, 4, one=lambda m, o, n: step(m, o, n, (16, 300)))


@pytest.mark.parametrize("averaged", [False, True])
def test_an_ema_copied_into_the_model_is_masked_by_finalize(averaged):
    model, optimizer, sparse = built("cigl" if averaged else "rigl")
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for number in range(1, 41):
        step(model, optimizer, number)
        ema.update_parameters(model)
    for p, q in zip(model.parameters(), ema.module.parameters(), strict=True):
        p.data.copy_(q.data)
    assert density(model, sparse) > sparse.density + 0.05
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(cigl.CiglWarning, match=r"outside the mask of 0\.weight.*sparse\.ema"):
        final = sparse.finalize()
    assert_announced(final, sparse)
    assert states_equal(before, model.state_dict())  # the model stays as it is
    with pytest.warns(cigl.CiglWarning, match="outside the mask"):
        final = sparse.finalize(average=False)
    inside = sparse.masks["0.weight"]
    assert torch.equal(final[0].weight[inside], model[0].weight[inside])


def test_evaluating_other_weights_is_said_and_nothing_is_written():
    """An EMA that is swapped in for an evaluation and out again."""
    model, optimizer, sparse = built("rigl", update_every=1)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for number in range(1, 9):
        step(model, optimizer, number)
        ema.update_parameters(model)
    mine = copy.deepcopy(model.state_dict())
    for p, q in zip(model.parameters(), ema.module.parameters(), strict=True):
        p.data.copy_(q.data)
    model.eval()
    with pytest.warns(cigl.CiglWarning, match=r"evaluated with \d+ non-zeros outside the mask of 0\.weight"):
        out = model(batch(9)[0])
    assert torch.equal(out, ema.module.eval()(batch(9)[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(batch(9)[0])
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(mine[name])
        step(model.train(), optimizer, 9)
    assert sparse.step == 9


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_a_gradient_written_in_a_later_hook_moves_no_inactive_weight(kind):
    model, optimizer, sparse = built("rigl")

    def noise(*_):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.add_(torch.randn_like(p), alpha=0.1)

    getattr(optimizer, f"register_step_{kind}_hook")(noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 8):
            step(model, optimizer, number)
            for layer in sparse.layers:
                assert layer.weight[~layer.mask].eq(0).all()
                assert all(state.tensor[~layer.mask].eq(0).all() for state in layer.states())


@pytest.mark.parametrize("method", list(cigl.methods()))
@pytest.mark.parametrize("steps", [13, 40])
def test_finalize_has_the_announced_zeros_for_every_method(method, steps):
    model, optimizer, sparse = built(method)
    run(model, optimizer, steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        final = sparse.finalize(average=False)
    parameters = dict(final.named_parameters())
    for layer in sparse.layers:
        assert int(parameters[layer.name].count_nonzero()) <= layer.target
    if method == "gmp" and steps == 13:
        assert any("cut to" in str(w.message) for w in caught)
    F.cross_entropy(model(batch(41)[0]), batch(41)[1]).backward()  # and training goes on
    optimizer.step()


def nonzeros(model, sparse):
    return [int(model.get_parameter(layer.name).count_nonzero()) for layer in sparse.layers]


def test_active_weights_that_have_not_moved_are_zero_and_counted():
    """M has exactly its count; the weights may have more zeros, and the summary shows both numbers."""
    model, optimizer, sparse = built("set")
    run(model, optimizer, 3)  # a round has just grown
    rows = sparse.summary().rows
    assert [row.active for row in rows] == [int(mask.sum()) for mask in sparse.masks.values()]
    assert [row.active for row in rows] == [layer.target for layer in sparse.layers]
    assert [row.nonzeros for row in rows] == [int(layer.weight.count_nonzero()) for layer in sparse.layers]
    total = sparse.summary().total
    assert total.nonzeros < total.active == sum(layer.target for layer in sparse.layers)
    text = str(sparse.summary())
    assert "active  non-zero" in text
    assert f"{total.active}" in text.splitlines()[-1]
    assert f"{total.nonzeros}" in text.splitlines()[-1]
    assert len({len(line) for line in text.splitlines()[1:]}) == 1
    assert "non-zero" in sparse.summary()._repr_html_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert nonzeros(sparse.finalize(), sparse) == [row.nonzeros for row in rows]
    run(model, optimizer, 2, first=4)
    assert sparse.summary().total.nonzeros > total.nonzeros  # they have moved


def test_where_both_numbers_are_the_same_the_summary_shows_neither():
    model, optimizer, sparse = built("static")
    run(model, optimizer, 3)
    total = sparse.summary().total
    assert total.nonzeros == total.active
    assert "non-zero" not in str(sparse.summary())


def test_under_z_the_summary_counts_w():
    model, _, sparse = built(cigl.method("cigl", random_mask=0.5, update_every=3))
    model(batch(1)[0])
    assert sparse.random_masks is not None
    assert sparse.summary().total.nonzeros == sparse.summary().total.active


def test_an_average_of_few_snapshots_may_have_more_zeros_than_announced():
    model, optimizer, sparse = built(cigl.method("cigl", random_mask=0.5, update_every=3))
    run(model, optimizer, 40)
    assert sparse.collection.count == 2  # so a quarter of the active weights was off in both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = nonzeros(sparse.finalize(), sparse)
    announced = [layer.target for layer in sparse.layers]
    assert all(count <= most for count, most in zip(counts, announced, strict=True))
    assert 0.6 * sum(announced) < sum(counts) < 0.9 * sum(announced)
    assert [int(mask.sum()) for mask in sparse.masks.values()] == announced


def test_members_and_draws_have_their_zeros_too():
    model, optimizer, sparse = built(cigl.method("cigl", second_moment=True, update_every=3))

    def noise(*_):
        model[0].weight.data.add_(1e-3)

    for number in range(1, 41):
        if number == 36:  # just before the last snapshots
            optimizer.register_step_post_hook(noise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step(model, optimizer, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [*sparse.sample_posterior(2), sparse.finalize()]
    for final in models:
        assert_announced(final, sparse)
