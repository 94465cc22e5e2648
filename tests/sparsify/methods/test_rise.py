"""A random mask that rises, and its rate in each layer: schedule, fan-in, average, members, summary, bad input."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import attach, batch, fresh, mlp, run, saved, sgd, states_equal
from torch import nn

import cigl
from cigl.sparsify.methods.catalogue import GMP, CigL
from cigl.sparsify.methods.schedule import Rise, Timetable

shares = st.floats(0, 1)


@settings(deadline=None)
@given(st.floats(0, 0.99), shares, shares, shares, shares)
def test_a_rise_never_falls_and_never_leaves_its_ends(rate, one, other, early, late):
    rise = Rise(rate, min(one, other), max(one, other))
    early, late = sorted((early, late))
    assert 0 <= rise(early) <= rise(late) <= rate
    assert rise(rise.until) == rise(1.0) == rise(1.5) == rate
    assert rise(rise.begin) == (rate if rise.begin == rise.until else 0)


def test_rises_by_hand():
    assert [cigl.rise(0.3)(p) for p in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.3])
    assert [cigl.rise(0.4, begin=0.2, until=0.6)(p) for p in (0.1, 0.3, 0.6)] == pytest.approx([0, 0.1, 0.4])
    assert [cigl.rise(0.4, begin=0.6, until=0.6)(p) for p in (0.59, 0.6, 1)] == [0, 0.4, 0.4]


FACTOR = 0.4


def rising(rate=0.5, factor=FACTOR, **changes):
    return cigl.method("cigl-rise", **({"random_mask": rate, "fan_in_factor": factor, "update_every": 3} | changes))


def bounds(sparse, rate=0.5):
    """Where Z ends in each layer, computed from the masks."""
    fan_in = {name: float(mask.sum()) / len(mask) for name, mask in sparse.masks.items()}
    return {name: min(rate, bound(n, len(fan_in))) for name, n in fan_in.items()}


def bound(n, layers):
    return FACTOR * max(0.0, n - 3) / n**0.5 / layers


def test_the_rate_of_a_layer_follows_from_its_active_fan_in_and_the_depth():
    model, optimizer, sparse = fresh(rising())
    ends = bounds(sparse)
    assert ends["0.weight"] < 0.45 < ends["3.weight"] == 0.5  # one is bound, the other is not
    for step in range(1, 41):
        run(model, optimizer, 1, first=step)
        expected = {name: min(step / 30, 1) * end for name, end in ends.items()}
        assert sparse.mask_rates == pytest.approx(expected), step


@settings(deadline=None)
@given(
    st.floats(0, 0.99),
    st.floats(1e-6, 1e6),
    st.lists(st.integers(1, 10**6), min_size=2, max_size=2),
    st.integers(1, 500),
    st.integers(1, 1000),
    st.integers(1, 1000),
)
def test_rates_are_shares_that_grow_with_time_and_fan_in_and_fall_with_depth(rate, factor, active, layers, step, steps):
    method = cigl.method("cigl-rise", random_mask=rate, fan_in_factor=factor)
    table = method.timetable(1, steps)
    few, many = sorted(active)

    def at(count, depth, step):
        return method.mask_rate(SimpleNamespace(units=100, layers=depth), count, table, min(step, steps))

    for count in (few, many):
        for depth in (layers, layers + 1):
            assert 0 <= at(count, depth, step) <= at(count, depth, step + 1) <= rate
    assert at(few, layers, step) <= at(many, layers, step)
    assert at(few, layers + 1, step) <= at(few, layers, step)
    n = many / 100
    assert at(many, layers, steps) == pytest.approx(min(rate, factor * max(0, n - 3) / n**0.5 / layers))


@pytest.mark.parametrize(
    ("module", "units"),
    [
        (nn.Linear(6, 10), 10),
        (nn.Conv2d(4, 8, 3, groups=2), 8),
        (nn.ConvTranspose2d(4, 8, 3, groups=2), 8),
        (nn.Conv1d(3, 5, 2), 5),
    ],
)
def test_the_fan_in_is_per_output_unit(module, units):
    """As ``Layer.fans`` counts it, over all units."""
    model = nn.Sequential(module)
    sparse = attach(model, sgd(model), rising(), sparsity=0.5)
    (layer,) = sparse.layers
    fan_in, _ = layer.fans()
    assert len(fan_in) == layer.units == units
    rate = sparse.method.mask_rate(layer, layer.target, sparse.table, sparse.table.steps)
    assert rate == pytest.approx(min(0.5, bound(float(fan_in.float().mean()), 1)))


def test_the_rate_follows_a_mask_that_shrinks():
    @dataclass(frozen=True, kw_only=True)
    class Pruned(GMP):
        random_mask: float = 0.9
        fan_in_factor: float = FACTOR

    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, Pruned(update_every=10))
    assert sparse.mask_rates["0.weight"] == pytest.approx(bound(12, 2))  # dense at first
    run(model, optimizer, 40)
    assert sparse.mask_rates == pytest.approx(bounds(sparse, 0.9))


def test_before_its_begin_a_step_is_one_without_z():
    """Bit by bit, though the method has a Z."""
    plain, optimizer, _ = fresh(cigl.method("rigl", update_every=3), sparsity=0.4)
    run(plain, optimizer, 20)
    model, optimizer, sparse = fresh(rising(cigl.rise(0.5, begin=0.5, until=0.6), factor=1.0), sparsity=0.4)
    run(model, optimizer, 20)
    assert states_equal(plain.state_dict(), model.state_dict())
    assert set(sparse.mask_rates.values()) == {0.0}
    run(model, optimizer, 1, first=21)
    assert all(rate > 0 for rate in sparse.mask_rates.values())


@pytest.mark.parametrize("kernels", ["masked", "sparse"])
def test_the_average_uses_each_layers_rate_at_each_step(kernels):
    """The rate still rises while snapshots are taken; the mean is computed here from the weights themselves."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    method = rising(cigl.rise(0.5, until=1.0), snapshots_per_epoch=2)
    sparse = attach(model, optimizer, method, epochs=10, steps_per_epoch=4, kernels=kernels)
    ends = bounds(sparse)
    snapshots = []
    for step in range(1, 41):
        run(model, optimizer, 1, first=step)
        if step % 2 == 0 and step > 32:
            keep = {name: 1 - end * step / 40 for name, end in ends.items()}
            state = model.state_dict()
            snapshots.append({name: state[name].double() * keep.get(name, 1.0) for name in state})
    final = sparse.finalize().state_dict()
    assert sparse.collection.count == len(snapshots) == 4
    for name, value in final.items():
        expected = sum(snapshot[name] for snapshot in snapshots) / 4
        torch.testing.assert_close(value.double(), expected, atol=1e-7, rtol=1e-6)


def test_members_are_drawn_at_the_rates_of_the_last_step():
    model, optimizer, sparse = fresh(rising())
    run(model, optimizer, 15)  # half of the rise
    states = [member.state_dict() for member in sparse.members(300)]
    assert sparse.mask_rates["3.weight"] == pytest.approx(0.25)
    for name, rate in sparse.mask_rates.items():
        moved = model.state_dict()[name] != 0  # a weight that the last round grew is still 0
        off = torch.stack([state[name][moved] == 0 for state in states]).float()
        assert off.mean() == pytest.approx(rate, abs=4 * (0.25 / off.numel()) ** 0.5)


def test_final_weights_take_the_rates_of_the_last_step():
    method = cigl.method("rigl-wdp", final_weights="p*W", random_mask=cigl.rise(0.4), update_every=3)
    model, optimizer, sparse = fresh(method)
    run(model, optimizer, 15)
    with pytest.warns(cigl.CiglWarning, match="finalizing early"):
        final = sparse.finalize([batch(1)])
    torch.testing.assert_close(final[0].weight, 0.8 * model[0].weight)


@pytest.mark.parametrize("stop", [7, 29, 36])
def test_resumed_in_the_middle_of_the_rise(stop):
    objects = [fresh(rising(cigl.rise(0.5, until=0.95), second_moment=True)) for _ in range(2)]
    model, optimizer, sparse = objects[0]
    run(model, optimizer, stop)
    for target, state in zip(objects[1], saved(model, optimizer, sparse), strict=True):
        target.load_state_dict(state)
    for each in objects:
        run(each[0], each[1], 40 - stop, first=stop + 1)
    assert states_equal(*(each[0].state_dict() for each in objects))
    assert states_equal(*(each[2].finalize([batch(1)]).state_dict() for each in objects))
    assert states_equal(*(each[2].members(3)[2].state_dict() for each in objects))


def test_a_state_with_another_rise_is_refused():
    _, _, sparse = fresh(rising())
    _, _, other = fresh(rising(0.4))
    with pytest.raises(cigl.CiglError, match=r"method 'random_mask' is {'rate': 0.5.* there and {'rate': 0.4"):
        other.load_state_dict(sparse.state_dict())


def test_a_state_from_before_there_were_rates_per_layer_loads():
    model, optimizer, sparse = fresh("cigl")
    run(model, optimizer, 5)
    state = saved(model, optimizer, sparse)
    for field in ("fan_in_factor", "snapshots_per_epoch"):
        assert state[2]["method"].pop(field, "missing") is None
    again = fresh("cigl")
    for target, part in zip(again, state, strict=True):
        target.load_state_dict(part)
    run(model, optimizer, 5, first=6)
    run(*again[:2], 5, first=6)
    assert states_equal(model.state_dict(), again[0].state_dict())


def test_the_summary_shows_the_rates():
    model, optimizer, sparse = fresh(rising())
    run(model, optimizer, 30)
    summary = sparse.summary()
    assert [row.mask_rate for row in summary.rows] == list(sparse.mask_rates.values())
    active = {name: int(mask.sum()) for name, mask in sparse.masks.items()}
    off = sum(active[name] * rate for name, rate in sparse.mask_rates.items())
    assert summary.total.mask_rate == pytest.approx(off / sum(active.values()))
    head, first = (str(summary).splitlines()[i].split() for i in (1, 3))
    assert (head[-1], first[-1]) == ("Z", f"{summary.rows[0].mask_rate:.4f}")
    assert len({len(line) for line in str(summary).splitlines()[1:]}) == 1
    _, _, plain = fresh("rigl")
    assert "Z" not in str(plain.summary()).splitlines()[1].split()


def test_training_flops_count_a_rising_mask_at_its_mean():
    model = mlp()
    sparse = attach(model, sgd(model), rising(0.4, factor=9.0, update_every=3), epochs=100)
    table, rows = sparse.table, sparse.summary().rows
    for layer, row in zip(sparse.layers, rows, strict=True):
        density = row.target * (1 - sum(cigl.rise(0.4)(t / table.steps) for t in range(1, 401)) / 400)
        dense = len(table.update_steps) / 400  # steps with a dense gradient
        assert row.training_flops == pytest.approx(density + dense * (1 - density) / 3, abs=0.01), layer.name


def test_a_number_sets_where_the_rise_ends():
    method = cigl.method("cigl-rise")
    assert isinstance(method.random_mask, Rise)
    changed = cigl.method("cigl-rise", random_mask=0.05)
    assert changed.random_mask == cigl.rise(0.05, until=method.random_mask.until)
    model = mlp()
    assert attach(model, sgd(model), "cigl-rise", random_mask=0.05).method.random_mask == changed.random_mask
    assert cigl.method("cigl", random_mask=cigl.rise(0.2)).random_mask == cigl.rise(0.2)


@pytest.mark.parametrize(
    ("random_mask", "message"),
    [
        (cigl.rise(1.0), r"the rate that random_mask rises to is 1.0: give a share in \[0, 1\)"),
        (cigl.rise(-0.1), r"rises to is -0.1: give a share in \[0, 1\)"),
        (cigl.rise(float("nan")), "rises to is nan"),
        (cigl.rise("0.1"), "rises to is '0.1'"),
        (
            cigl.rise(0.1, until=1.2),
            r"rise from 0.0 to 1.2 of training: give two shares in \[0, 1\].*ends with training",
        ),
        (cigl.rise(0.1, begin=0.8, until=0.5), "rise from 0.8 to 0.5 of training"),
        (cigl.rise(0.1, begin=-1), "rise from -1 to 0.75"),
        (cigl.rise(0.1, begin=None), "rise from None"),
        (cigl.linear(0.1), r"random_mask is Decay.*: give a share in \[0, 1\)"),
    ],
)
def test_rises_that_cannot_work_are_refused(random_mask, message):
    with pytest.raises(cigl.CiglError, match=message) as caught:
        cigl.method("cigl", random_mask=random_mask)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0, -1.0, float("inf"), float("nan"), "0.1", True])
def test_factors_that_cannot_work_are_refused(factor):
    with pytest.raises(cigl.CiglError, match=r"fan_in_factor is .*: give a number above 0"):
        cigl.method("cigl-rise", fan_in_factor=factor)


@pytest.mark.parametrize("often", [0, -1, 2.5, "4", True])
def test_numbers_of_snapshots_that_cannot_work_are_refused(often):
    with pytest.raises(cigl.CiglError, match=r"snapshots_per_epoch is .*: give a whole number, at least 1"):
        cigl.method("cigl-rise", snapshots_per_epoch=often)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 12), st.floats(0, 0.99))
def test_snapshots_are_spread_evenly_over_an_epoch(steps_per_epoch, often, epochs, start):
    table = Timetable(steps_per_epoch * epochs, steps_per_epoch, average_from=start, snapshots_per_epoch=often)
    whole = Timetable(table.steps, steps_per_epoch, average_from=0.0, snapshots_per_epoch=often)
    assert len(whole.snapshot_steps) == epochs * min(often, steps_per_epoch)
    gaps = [b - a for a, b in pairwise([0, *whole.snapshot_steps])]
    assert max(gaps) - min(gaps) <= 1
    ends_of_epochs = range(steps_per_epoch, table.steps + 1, steps_per_epoch)
    assert set(ends_of_epochs) <= set(whole.snapshot_steps)
    assert table.snapshot_steps == [t for t in whole.snapshot_steps if t > start * table.steps + 1e-9]


def test_a_factor_that_switches_z_off_everywhere_is_named():
    def attached(**changes):
        model = mlp()
        options = {"sparsity": 0.7, "epochs": 50, "steps_per_epoch": 4}
        return cigl.attach(model, sgd(model), rising(**changes), **options)

    with pytest.warns(cigl.CiglWarning, match="fan_in_factor=0.0001 switches the random mask off: .*raise it"):
        attached(factor=1e-4)
    attached()  # warnings are errors here


def test_a_rate_of_ones_own_that_is_no_share_is_named():
    class Wild(CigL):
        def mask_rate(self, layer, active, table, step):
            return 1.5 if step == 3 else 0.1

    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, Wild(update_every=3))
    run(model, optimizer, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(cigl.CiglError, match=r"mask_rate of method 'cigl' is 1.5 for 0.weight in step 3"):
        run(model, optimizer, 1, first=3)
    assert states_equal(before, model.state_dict())
