"""The largest scores of a tensor: within a process, or over all the processes that hold a part of it.

Over processes, the scores never travel. A score and its position make one 64-bit key, so that no two are equal and the
lower position wins; the smallest key that is still among the largest is found digit by digit, from the counts of keys
per digit, summed over the processes: 16 numbers per tensor and digit, for all tensors in one message, and seldom more
than the first half of the digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cigl.sparsify.shards import WHOLE, Part, total

Scores = npt.NDArray[np.float32]
Ranks = npt.NDArray[np.int64]
_STRIDE = 61  # of the sample; a prime, so that it doesn't run along a row or column
_DIGIT = 4  # bits
_KEY = 64


@dataclass(frozen=True, eq=False)
class Request:
    """The ``count`` largest of all processes' scores; ``positions`` are the local ones' (None: 0, 1, 2, ...)."""

    scores: Scores
    count: int
    part: Part = WHOLE
    positions: npt.NDArray[np.uint32] | None = None


def largest_of(requests: Sequence[Request]) -> list[Ranks]:
    """For each request, which of the local scores are among the largest, in ascending order."""
    found: list[Ranks | None] = [largest(r.scores, r.count) if r.part.group is None else None for r in requests]
    for group in _distinct(r.part.group for r in requests):
        members = [place for place, r in enumerate(requests) if r.part.group is group]
        for place, ranks in zip(members, _over_processes([requests[place] for place in members]), strict=True):
            found[place] = ranks
    return [ranks for ranks in found if ranks is not None]


def largest(scores: Scores, count: int) -> Ranks:
    """The positions of the ``count`` largest scores, in ascending order.

    A partition finds the threshold, where ``torch.topk`` would take ten times as long; where few of many are wanted, a
    sample first shows which ones can be among them at all.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 3.0], np.float32), 2)
    array([1, 3])
    """
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= scores.size:
        return np.arange(scores.size)
    candidates = _candidates(scores, count)
    few = scores if candidates is None else scores[candidates]
    threshold = np.partition(few, few.size - count)[few.size - count]
    chosen = np.flatnonzero(few >= threshold)
    surplus = chosen.size - count
    if surplus:  # several scores equal the threshold: the highest positions among them go
        ties = np.flatnonzero(few[chosen] == threshold)
        chosen = np.delete(chosen, ties[ties.size - surplus :])
    return chosen if candidates is None else candidates[chosen]


def _candidates(scores: Scores, count: int) -> Ranks | None:
    """Positions that hold all of the ``count`` largest scores and not many more, if a sample finds them."""
    sample = scores[::_STRIDE]
    expected = count / _STRIDE
    rank = int(expected + 4 * expected**0.5 + 4)  # with a margin, so that a miss is rare
    if rank * 8 > sample.size:
        return None
    bound = np.partition(sample, sample.size - rank)[sample.size - rank]
    found = np.flatnonzero(scores >= bound)
    return found if count <= found.size <= scores.size // 2 else None


class _Search:
    """One request: the digits of the threshold so far, and the keys that begin with them."""

    def __init__(self, request: Request):
        self.keys = _keys(request)
        self._open, self._left = self.keys, request.count
        self.threshold = np.uint64(0)
        self.is_done = request.count <= 0

    def counts(self, shift: int) -> npt.NDArray[np.int64]:
        digits = (self._open >> np.uint64(shift)) & np.uint64((1 << _DIGIT) - 1)
        return np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT)

    def narrow(self, counts: list[int], shift: int) -> None:
        """The threshold's next digit, from the counts of all processes: the largest keys are passed over first."""
        digit = len(counts) - 1
        while digit and counts[digit] < self._left:
            self._left -= counts[digit]
            digit -= 1
        self.is_done = self.is_done or counts[digit] == self._left  # all that begin so are wanted
        self.threshold |= np.uint64(digit << shift)
        self._open = self._open[(self._open >> np.uint64(shift)) == (self.threshold >> np.uint64(shift))]


def _over_processes(requests: Sequence[Request]) -> list[Ranks]:
    searches = [_Search(request) for request in requests]
    for shift in range(_KEY - _DIGIT, -1, -_DIGIT):
        mine = torch.from_numpy(np.stack([search.counts(shift) for search in searches]))
        for search, counts in zip(searches, total(requests[0].part, mine).tolist(), strict=True):
            search.narrow(counts, shift)
        if all(search.is_done for search in searches):
            break
    return [
        np.flatnonzero(search.keys >= search.threshold) if request.count > 0 else np.empty(0, np.int64)
        for search, request in zip(searches, requests, strict=True)
    ]


def _keys(request: Request) -> npt.NDArray[np.uint64]:
    """Larger for larger scores and, among equal ones, for lower positions in the whole tensor."""
    scores = request.scores + np.float32(0)  # -0 and 0 are equal
    bits = scores.view(np.uint32)
    ordered = bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    positions = np.arange(scores.size, dtype=np.uint32) if request.positions is None else request.positions
    return ordered.astype(np.uint64) << np.uint64(32) | ~request.part.in_whole(positions)


def _distinct(groups: Iterable[Any]) -> list[Any]:
    return list({id(group): group for group in groups if group is not None}.values())
