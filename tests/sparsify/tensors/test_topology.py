import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cigl import CiglError
from cigl.sparsify.tensors.topk import largest
from cigl.sparsify.tensors.topology import Proposal, changes


def change(active, keep_scores, grow_scores, keep, grow):
    return changes([Proposal(active, keep_scores, grow_scores, keep, grow)])[0]


def positions(*values):
    return np.array(values, np.uint32)


def scores(*values):
    return np.array(values, np.float32)


def test_ties_go_to_the_lower_position():
    assert largest(scores(1, 3, 2, 3, 3), 2).tolist() == [1, 3]
    assert largest(scores(0, 0, 0, 0), 2).tolist() == [0, 1]


def test_hand_computed_round():
    # Active 0 1 4 5; |W| drops 1 and 4. Outside the kept 0 and 5, gradients are largest at 3 and 1.
    result = change(positions(0, 1, 4, 5), scores(0.9, 0.1, 0.2, 0.8), scores(9, 5, 1, 7, 0, 9), keep=2, grow=2)
    assert result.active.tolist() == [0, 1, 3, 5]
    assert result.dropped.tolist() == [4]
    assert result.grown.tolist() == [3]  # 1 was dropped and grown again: it simply stays


def test_pruning_alone():
    result = change(positions(1, 2, 3), scores(1, 3, 2), None, keep=1, grow=0)
    assert (result.active.tolist(), result.dropped.tolist(), result.grown.tolist()) == ([2], [1, 3], [])


def test_nan_scores_are_refused():
    with pytest.raises(CiglError, match="NaN"):
        change(positions(0, 1), scores(1, 2), scores(np.nan, 1, 1), keep=1, grow=1)


@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-3, 3, width=16)),
    st.integers(0, 400),
)
def test_largest_is_a_stable_sort(values, count):
    expected = sorted(sorted(range(values.size), key=lambda i: (-values[i], i))[:count])
    assert largest(values, count).tolist() == expected


@pytest.mark.parametrize("size", [5_000, 200_000])
@pytest.mark.parametrize("kind", ["normal", "few values", "sorted", "constant", "spikes"])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3])
def test_the_sampled_threshold_changes_nothing(size, kind, share):
    rng = np.random.default_rng(size)
    values = {
        "normal": rng.standard_normal(size),
        "few values": rng.integers(0, 3, size),
        "sorted": np.arange(size),
        "constant": np.ones(size),
        "spikes": np.where(np.arange(size) % 61 == 0, 9.0, rng.random(size)),  # all of the sample is large
    }[kind].astype(np.float32)
    count = int(share * size)
    order = np.argsort(-values, kind="stable")[:count]
    assert np.array_equal(largest(values, count), np.sort(order))


@given(st.data())
def test_a_round_keeps_the_count_and_says_where_the_mask_changed(data):
    size = data.draw(st.integers(2, 80))
    mask = data.draw(hnp.arrays(bool, size))
    active = np.flatnonzero(mask).astype(np.uint32)
    k = data.draw(st.integers(0, min(active.size, size - active.size)))
    numbers = hnp.arrays(np.float32, size, elements=st.floats(0, 1, width=16))
    weights, gradients = data.draw(numbers), data.draw(numbers)
    result = change(active, weights[active], gradients.copy(), active.size - k, k)
    after = np.zeros(size, bool)
    after[result.active] = True
    assert after.sum() == mask.sum()
    assert np.array_equal(np.flatnonzero(mask & ~after), result.dropped)
    assert np.array_equal(np.flatnonzero(~mask & after), result.grown)
    assert np.all(np.diff(result.active.astype(int)) > 0)
