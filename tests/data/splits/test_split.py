"""Invariants of every split: partitions, and batches that are a pure function of seed, epoch and number."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cigl.common.errors import CiglError
from cigl.data.augment import ImageStore
from cigl.data.sources.memory import Images, MemorySplit, Normal, Vectors


def vectors(labels):
    """The only input of an example is its position."""
    return MemorySplit(Vectors(torch.arange(len(labels)).float()[:, None]), torch.as_tensor(labels, dtype=torch.int64))


def images(count, pad=4):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, 8, 8), dtype=np.uint8))
    return MemorySplit(Images(ImageStore(pixels, pad), Normal((0.5,) * 3, (0.2,) * 3)), torch.arange(count) % 3)


def positions(split):
    return [int(x) for batch, _ in split.batches(7) for x in batch.flatten()]


labels_lists = st.lists(st.integers(0, 4), min_size=2, max_size=120)


@given(labels_lists, st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_divide_is_a_stratified_partition(labels, share, seed):
    split, n = vectors(labels), len(labels)
    if not 0 < round(share * n) < n:
        with pytest.raises(CiglError, match="leaves nothing"):
            split.divide(share, seed)
        return
    train, held = split.divide(share, seed)
    assert sorted(positions(train) + positions(held)) == list(range(n))
    assert len(held) == round(share * n)
    exact = round(share * n) / n
    for kind in set(labels):
        assert abs(int((held.labels == kind).sum()) - exact * labels.count(kind)) < 1
    again = split.divide(share, seed)
    assert positions(again[1]) == positions(held)
    assert [labels[p] for p in positions(held)] == held.labels.tolist()


def test_divide_depends_on_the_seed():
    split = vectors([0, 1] * 50)
    assert positions(split.divide(0.2, 0)[1]) != positions(split.divide(0.2, 1)[1])


@given(labels_lists, st.data())
def test_take_of_take(labels, data):
    split = vectors(labels)
    first = data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=30))
    second = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=30))
    part = split.take(first).take(torch.tensor(second, dtype=torch.int64))
    assert positions(part) == [first[k] for k in second]
    assert part.labels.tolist() == [labels[first[k]] for k in second]


def test_take_accepts_ranges_and_slices_and_refuses_what_is_outside():
    split = vectors([0] * 10)
    assert positions(split.take(range(3))) == [0, 1, 2] == positions(split.take(slice(3)))
    for wrong in ([10], [-1], [[0]]):
        with pytest.raises(CiglError, match="from 0 to 9"):
            split.take(wrong)


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_start_gives_the_tail(count, batch_size, start, shuffle, augment, drop_last, seed):
    split = images(count)
    options = {"seed": seed, "epoch": 2, "shuffle": shuffle, "augment": augment, "drop_last": drop_last}
    whole = list(split.batches(batch_size, **options))
    assert len(whole) == split.steps(batch_size, drop_last)
    np.random.seed(seed)  # nothing of this matters
    torch.manual_seed(seed)
    tail = list(split.batches(batch_size, start=start, **options))
    assert len(tail) == max(0, len(whole) - start)
    for (x, y), (x2, y2) in zip(whole[start:], tail, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 9))
def test_an_epoch_sees_everything_once(count, batch_size, epoch):
    split = vectors([0] * count)
    seen = [int(v) for x, _ in split.batches(batch_size, epoch=epoch, shuffle=True) for v in x]
    assert sorted(seen) == list(range(count))


def test_seeds_and_epochs_differ_and_repeat():
    split = images(64)

    def first(**options):
        return next(split.batches(64, shuffle=True, augment=True, **options))[0]

    assert torch.equal(first(seed=1, epoch=1), first(seed=1, epoch=1))
    assert not torch.equal(first(seed=1, epoch=1), first(seed=1, epoch=2))
    assert not torch.equal(first(seed=1, epoch=1), first(seed=2, epoch=1))


def test_global_generators_are_untouched():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    split = images(20)
    list(split.batches(4, shuffle=True, augment=True))
    split.divide(0.5, 0)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_types_and_normalisation():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    split = MemorySplit(Images(ImageStore(pixels.contiguous()), Normal((0.25,), (0.5,))), torch.tensor([1, 0]))
    x, y = next(split.batches(2, augment=True))  # stored without padding: not augmented
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert x.is_contiguous()
    assert torch.allclose(x[:, 0, 0, 0], torch.tensor([-0.5, 1.5]))
    assert torch.equal(y, torch.tensor([1, 0]))


def test_a_batch_may_be_changed_in_place():
    split = vectors([0, 1, 2])
    next(split.batches(3))[0].zero_()
    assert positions(split) == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"start": -1}, {"epoch": -1}, {"workers": -1}])
def test_wrong_arguments_are_refused_at_the_call(wrong):
    with pytest.raises(CiglError, match="count from 0"):
        vectors([0]).batches(1, **wrong)
    with pytest.raises(CiglError, match="at least one"):
        vectors([0]).batches(0)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(0, 2**40))
@settings(deadline=None)
def test_the_shares_of_several_processes_are_the_batches_of_one(count, batch_size, processes, drop_last, seed):
    """Each example once, in the same order, augmented in the same way."""
    split = images(count)
    options = {"seed": seed, "epoch": 2, "shuffle": True, "augment": True, "drop_last": drop_last}
    parts = [list(split.batches(batch_size, share=(k, processes), **options)) for k in range(processes)]
    whole = list(split.batches(batch_size, **options))
    assert [len(part) for part in parts] == [len(whole)] * processes
    for (x, y), *several in zip(whole, *parts, strict=True):
        assert torch.equal(torch.cat([part for part, _ in several]), x)
        assert torch.equal(torch.cat([part for _, part in several]), y)


@pytest.mark.parametrize("share", [(2, 2), (-1, 2), (0, 0)])
def test_a_share_that_is_none(share):
    with pytest.raises(CiglError, match="the k-th of n processes"):
        images(8).batches(4, share=share)


@given(labels_lists, st.integers(1, 120), st.integers(0, 2**40))
def test_a_draw_is_stratified_and_goes_with_the_seed(labels, count, seed):
    split, n = vectors(labels), len(labels)
    if count > n:
        with pytest.raises(CiglError, match="can't be drawn"):
            split.draw(count, seed)
        return
    drawn = split.draw(count, seed)
    assert len(set(positions(drawn))) == len(drawn) == count
    assert positions(split.draw(count, seed)) == positions(drawn)
    for kind in set(labels):
        assert abs(int((drawn.labels == kind).sum()) - count / n * labels.count(kind)) < 1


def test_draws_of_sorted_examples():
    """As image folders have them: class after class."""
    split = vectors([0] * 500 + [1] * 300 + [2] * 200)
    draws = [positions(split.draw(100, seed)) for seed in (0, 1)]
    assert torch.bincount(split.draw(100, 0).labels).tolist() == [50, 30, 20]
    assert draws[0] != draws[1]
