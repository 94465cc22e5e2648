import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy_reference import largest as largest_in_numpy
from numpy_reference import new_mask

from cigl.sparsify.tensors.topk import largest
from cigl.sparsify.tensors.topology import Proposal, new_masks


def scores(*values):
    return torch.tensor(values, dtype=torch.float32)


def change(size, active, keep_scores, grow_scores, keep, grow):
    (mask,) = new_masks([Proposal(size, torch.tensor(active), keep_scores, grow_scores, keep, grow)])
    return mask.nonzero().view(-1).tolist()


def test_ties_go_to_the_lower_position():
    assert largest(scores(1, 3, 2, 3, 3), 2).tolist() == [False, True, False, True, False]
    assert largest(scores(0, 0, 0, 0), 2).tolist() == [True, True, False, False]


def test_hand_computed_round():
    # Active 0 1 4 5; |W| drops 1 and 4. Outside the kept 0 and 5, gradients are largest at 3 and 1.
    result = change(6, [0, 1, 4, 5], scores(0.9, 0.1, 0.2, 0.8), scores(9, 5, 1, 7, 0, 9), keep=2, grow=2)
    assert result == [0, 1, 3, 5]  # 1 was dropped and grown again: it simply stays


def test_pruning_alone():
    assert change(4, [1, 2, 3], scores(1, 3, 2), None, keep=1, grow=0) == [2]


def test_nan_is_found_in_either_score():
    for keep, grow, found in ((1.0, 1.0, False), (np.nan, 1.0, True), (1.0, np.nan, True)):
        proposal = Proposal(3, torch.tensor([0, 1]), scores(keep, 2), scores(1, grow, 1), 1, 1)
        assert bool(proposal.has_nan()) is found
    assert not Proposal(0, torch.tensor([], dtype=torch.int64), scores(), None, 0, 0).has_nan()


@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-3, 3, width=16)),
    st.integers(0, 400),
)
def test_largest_is_a_stable_sort(values, count):
    assert (
        largest(torch.from_numpy(values), count).nonzero().view(-1).tolist() == largest_in_numpy(values, count).tolist()
    )


@pytest.mark.parametrize("kind", ["normal", "few values", "sorted", "constant"])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3])
def test_largest_of_many(kind, share):
    rng, size = np.random.default_rng(5), 50_000
    values = {
        "normal": rng.standard_normal(size),
        "few values": rng.integers(0, 3, size),
        "sorted": np.arange(size),
        "constant": np.ones(size),
    }[kind].astype(np.float32)
    count = int(share * size)
    assert np.array_equal(np.flatnonzero(largest(torch.from_numpy(values), count)), largest_in_numpy(values, count))


@given(st.data())
def test_a_round_keeps_the_count_and_is_that_of_numpy(data):
    size = data.draw(st.integers(2, 80))
    mask = data.draw(hnp.arrays(bool, size))
    active = np.flatnonzero(mask)
    k = data.draw(st.integers(0, min(active.size, size - active.size)))
    numbers = hnp.arrays(np.float32, size, elements=st.floats(0, 1, width=16))
    weights, gradients = data.draw(numbers), data.draw(numbers)
    after = change(
        size, active, torch.from_numpy(weights[active]), torch.from_numpy(gradients.copy()), active.size - k, k
    )
    assert len(after) == mask.sum()
    assert after == np.flatnonzero(new_mask(mask, weights, gradients, active.size - k, k)).tolist()
