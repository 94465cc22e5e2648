"""The largest scores over several processes, played by threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy_reference import largest

from cigl.sparsify.tensors import topk as selection
from cigl.sparsify.tensors.shards import Part
from cigl.sparsify.tensors.topk import Request, largest_of


class Processes:
    """Sums over threads; counts what would have been sent."""

    def __init__(self, number):
        self.barrier, self.sent, self.parts = threading.Barrier(number), 0, {}

    def all_reduce(self, part, numbers):
        self.parts[threading.get_ident()] = numbers
        if self.barrier.wait() == 0:
            self.sent += numbers.numel()
        result = sum(self.parts.values())
        self.barrier.wait()
        return result

    def sum_before(self, part, numbers):
        row = torch.zeros(self.barrier.parties, len(numbers), dtype=torch.int64)
        row[part.group.place.number] = numbers
        return self.all_reduce(part, row)[: part.group.place.number].sum(0)


def over_threads(tensors, counts, cuts, monkeypatch):
    """Each tensor cut at the same places (as shares of its size); the positions that the threads find together."""
    processes, group = Processes(len(cuts) + 1), SimpleNamespace(place=threading.local())
    monkeypatch.setattr(selection, "all_reduce", processes.all_reduce)
    monkeypatch.setattr(selection, "sum_before", processes.sum_before)
    found = [[] for _ in tensors]

    def work(place):
        group.place.number = place
        requests, starts = [], []
        for scores, count in zip(tensors, counts, strict=True):
            bounds = [0, *(round(cut * scores.size) for cut in sorted(cuts)), scores.size]
            starts.append(bounds[place])
            mine = torch.from_numpy(scores[bounds[place] : bounds[place + 1]].copy())
            requests.append(Request(mine, count, Part(starts[-1], group)))
        for result, chosen, start in zip(found, largest_of(requests), starts, strict=True):
            result.append((start, place, np.flatnonzero(chosen) + start))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(cuts) + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [np.concatenate([ranks for *_, ranks in sorted(r, key=lambda x: x[:2])]) for r in found], processes.sent


scores = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-2, 2, width=16) | st.just(-np.inf))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(scores, st.integers(-1, 70)), min_size=1, max_size=3),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_processes_find_what_one_would(requests, cuts):
    with pytest.MonkeyPatch.context() as patch:
        found, _ = over_threads([s for s, _ in requests], [c for _, c in requests], cuts, patch)
    for (values, count), positions in zip(requests, found, strict=True):
        assert positions.tolist() == largest(values, count).tolist()


def test_a_few_numbers_are_sent_whatever_the_size(monkeypatch):
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    found, sent = over_threads([np.abs(values)], [1_000], [0.3, 0.5], monkeypatch)
    assert np.array_equal(found[0], largest(np.abs(values), 1_000))
    assert sent <= 8 * 16 + 3


def test_minus_zero_is_zero(monkeypatch):
    values = np.array([-0.0, 0.0, -0.0, 0.0], np.float32)
    (found,), _ = over_threads([values], [2], [0.5], monkeypatch)
    assert found.tolist() == largest(values, 2).tolist() == [0, 1]
