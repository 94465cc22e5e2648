import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cigl.report.evidence.measurements import Measured
from cigl.report.evidence.statistics import difference, mean, raised, t_quantile

flat = np.zeros(50)


def spread(value, sd, rng, shared=0.0, number=4000):
    """Draws around a value; ``shared`` is a deviation that other seeds have too."""
    return Measured(value, value + shared + sd * rng.normal(size=number))


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3.7, 10, 60, 1000, 1e7])
def test_t_quantile_is_scipys(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-5)


def test_without_test_point_variance_it_is_students_interval():
    values = [0.81, 0.84, 0.83]
    found = mean({seed: Measured(value, np.full(50, value)) for seed, value in enumerate(values)})
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert found.value == pytest.approx(np.mean(values))
    assert found.seed_sd == pytest.approx(np.std(values, ddof=1))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-4)
    assert found.test_error == 0


def test_one_seed_has_the_variance_of_test_points_only():
    rng = np.random.default_rng(0)
    one = spread(0.8, 0.01, rng)
    found = mean({3: one})
    assert found.seed_sd is None
    assert found.seed_error is None
    assert found.test_error == pytest.approx(one.draws.std())
    assert found.high - found.low == pytest.approx(2 * 1.96 * one.draws.std(), rel=1e-4)


def test_the_two_variances_are_told_apart():
    rng = np.random.default_rng(1)
    common = 0.02 * rng.normal(size=4000)
    numbers = {seed: spread(0.5 + 0.1 * seed, 0.005, rng, common) for seed in range(3)}
    found = mean(numbers)
    assert found.test_error == pytest.approx(0.02, rel=0.05)
    assert found.seed_sd == pytest.approx(0.1)
    assert found.seed_error == pytest.approx(0.1 / math.sqrt(3))
    variance = found.seed_error**2 + found.test_error**2
    freedom = 2 * (variance / found.seed_error**2) ** 2
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(variance), rel=1e-4)


def test_seeds_that_agree_by_chance_do_not_make_certainty():
    rng = np.random.default_rng(2)
    found = mean({seed: spread(0.5, 0.03, rng) for seed in range(3)})
    assert found.seed_sd == 0
    assert found.seed_error == pytest.approx(0.03 / math.sqrt(3), rel=0.05)


def test_a_difference_is_paired():
    rng = np.random.default_rng(3)
    common = 0.05 * rng.normal(size=4000)
    a = {seed: spread(0.7 + 0.1 * seed, 0, rng, common) for seed in (0, 1, 2)}
    b = {seed: spread(0.6 + 0.1 * seed, 0, rng, common) for seed in (0, 1, 5)}
    found = difference(a, b)
    assert found.seeds == 2
    assert found.value == pytest.approx(0.1)
    assert found.test_error == pytest.approx(0, abs=1e-9)  # what both share cancels
    assert found.seed_sd == pytest.approx(0, abs=1e-9)
    assert found.excludes_zero
    assert difference(a, {7: b[0]}) is None


def test_noise_raises_a_calibration_error():
    assert raised(Measured(0.02, np.full(9, 0.02), floor=0.01)) == 0  # gaps much larger than noise
    pure = Measured(0.01, np.full(9, 0.01 * math.sqrt(2)), floor=0.01)  # nothing but noise
    assert raised(pure) == pytest.approx(0.01)
    assert raised(Measured(0.01, np.full(9, 0.05), floor=0.01)) == 0.01  # never more than the floor
    assert mean({0: pure}).low == 0
    assert mean({0: pure}).floor == 0.01


def test_differences_leave_room_for_the_noise_of_both():
    a, b = (Measured(value, np.full(9, value + 0.001), floor=0.01) for value in (0.02, 0.05))
    found = difference({0: a}, {0: b})
    room = 0.001 / (math.sqrt(2) - 1) * math.sqrt(2 / 3)
    assert (found.low, found.high) == pytest.approx((-0.03 - room, -0.03 + room))


finite = st.floats(-10, 10)


@settings(max_examples=50, deadline=None)
@given(st.lists(finite, min_size=1, max_size=6), st.floats(0, 3), finite, st.integers(0, 99))
def test_intervals_move_with_their_numbers(values, sd, shift, seed):
    rng = np.random.default_rng(seed)
    numbers = {i: spread(value, sd, rng, number=40) for i, value in enumerate(values)}
    moved = {i: Measured(one.value + shift, one.draws + shift) for i, one in numbers.items()}
    a, b = mean(numbers), mean(moved)
    assert a.low <= a.value <= a.high
    for name in ("value", "low", "high"):
        assert getattr(b, name) == pytest.approx(getattr(a, name) + shift, abs=1e-6)
    assert difference(numbers, numbers).value == 0
    swapped, straight = difference(moved, numbers), difference(numbers, moved)
    assert (swapped.low, swapped.high) == pytest.approx((-straight.high, -straight.low), abs=1e-9)


def covered(k, seeds, shared, own, repeats, rng):
    """How often the interval holds the truth (0) where everything is normal."""
    hits = 0
    for _ in range(repeats):
        values = rng.normal() * shared + rng.normal(size=k) * math.hypot(seeds, own)
        common = shared * rng.normal(size=400)
        draws = values[:, None] + common + own * rng.normal(size=(k, 400))
        found = mean({i: Measured(float(values[i]), draws[i]) for i in range(k)})
        hits += found.low <= 0 <= found.high
    return hits / repeats


@pytest.mark.parametrize(
    ("k", "seeds", "shared", "own", "least"),
    [
        (3, 0, 1, 1, 0.93), (3, 1, 1, 1, 0.93), (3, 3, 1, 1, 0.90),
        (3, 0, 0, 1, 0.93), (5, 1, 0, 1, 0.93), (1, 0, 1, 0, 0.92),
    ],
)  # fmt: skip
def test_coverage_where_all_is_normal(k, seeds, shared, own, least):
    assert least <= covered(k, seeds, shared, own, 600, np.random.default_rng(4)) <= 1
