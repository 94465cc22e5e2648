import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cigl import constant, cosine, linear
from cigl.sparsify.methods.schedule import CycleTimetable, Timetable


@pytest.mark.parametrize(
    ("decay", "values"),
    [(cosine(0.3), [0.3, 0.15, 0.0]), (linear(0.3), [0.3, 0.15, 0.0]), (constant(0.5), [0.5, 0.5, 0.5])],
)
def test_decays_by_hand(decay, values):
    assert [decay(p) for p in (0.0, 0.5, 1.0)] == pytest.approx(values)
    assert cosine(0.3)(0.25) == pytest.approx(0.15 * (1 + math.sqrt(0.5)))


def test_rounds_and_snapshots_by_hand():
    table = Timetable(200, 20, 50, 0.75, cosine(0.3), 0.8)
    assert [t for t in range(1, 201) if table.updates(t)] == [50, 100, 150]
    assert [t for t in range(1, 201) if table.snapshots(t)] == [180, 200]  # t > 160
    assert table.fraction(150) == pytest.approx(0)


def test_shares_that_are_not_exact_in_binary():
    table = Timetable(100, 1, 1, 0.29, cosine(0.3), 0.29)  # 0.29 * 100 is 28.999999999999996
    assert table.update_steps[-1] == 29
    assert table.snapshot_steps[0] == 30


def test_nothing_is_due_without_rounds_and_averages():
    table = Timetable(200, 20)
    assert not any(table.updates(t) or table.snapshots(t) for t in range(1, 201))


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 50), st.floats(0, 1), st.floats(0, 0.99))
def test_the_lists_are_the_steps(epochs, per_epoch, every, until, start):
    table = Timetable(epochs * per_epoch, per_epoch, every, until, cosine(0.3), start)
    steps = range(1, table.steps + 1)
    assert table.update_steps == [t for t in steps if table.updates(t)]
    assert table.snapshot_steps == [t for t in steps if table.snapshots(t)]
    assert table.snapshot_steps[-1:] == [table.steps]


def cycles(**changes):
    options = {"steps": 100, "steps_per_epoch": 5, "update_every": 10, "update_until": 0.75}
    return CycleTimetable(**(options | {"drop_fraction": cosine(0.3), "average_from": 0.8} | changes))


def test_cycles_by_hand():
    table = cycles()  # two epochs a cycle: 80-90, 90-100
    assert table.first_cycle == 80
    assert table.update_steps == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert table.snapshot_steps == [90, 100]
    assert [table.fraction(t) for t in (80, 90)] == [0.5, 0.5]


def test_cycles_are_laid_back_from_the_end():
    assert cycles(average_from=0.75).first_cycle == 80  # 25 steps hold two cycles of 10
    assert cycles(cycle_epochs=3, average_from=0.75).first_cycle == 85


@given(st.integers(2, 40), st.integers(1, 9), st.integers(1, 12), st.integers(1, 5), st.floats(0, 0.95))
def test_cycle_lists_are_the_steps(epochs, per_epoch, every, cycle, start):
    times = {"update_every": every, "cycle_epochs": cycle, "average_from": start}
    table = cycles(steps=epochs * per_epoch, steps_per_epoch=per_epoch, **times)
    steps = range(1, table.steps + 1)
    assert table.update_steps == [t for t in steps if table.updates(t)]
    assert table.snapshot_steps == [t for t in steps if table.snapshots(t)]


def test_the_learning_rate_saws_from_high_to_low():
    factor = cycles().learning_rate(lambda t: 1 / (1 + t))
    assert factor(79) == pytest.approx(1 / 80)
    saw = [factor(t) for t in range(80, 100)]
    assert saw[9] == saw[19] == pytest.approx(0.005)  # the step before each ticket
    assert saw[0] == saw[10] == pytest.approx(0.9 * 0.05 + 0.1 * 0.005)
    assert saw[:10] == sorted(saw[:10], reverse=True)
    assert cycles().learning_rate()(3) == 1.0
