"""The largest scores of a tensor: within a process, or over all the processes that hold a part of it.

Over processes, the scores never travel. The smallest score that is still among the largest is found digit by digit,
from the counts of scores per digit, summed over the processes: eight times 16 numbers per tensor, for all tensors in
one message. Of several that are equal to it the lower positions win, for which one more number is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cigl.sparsify.tensors.shards import WHOLE, Part, all_reduce, sum_before

Scores = npt.NDArray[np.float32]
Ranks = npt.NDArray[np.int64]
_STRIDE = 61  # of the sample; a prime, so that it doesn't run along a row or column
_DIGIT = 4  # bits
_LARGEST = (1 << 32) - 1


@dataclass(frozen=True, eq=False)
class Request:
    """The ``count`` largest of all processes' scores, which are in the order of their positions."""

    scores: Scores
    count: int
    part: Part = WHOLE


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
    """One request: the digits of the threshold so far, and how many equal to it are wanted."""

    def __init__(self, request: Request):
        self._places = largest(request.scores, request.count)  # no other can be among the largest of all
        self._codes = _codes(request.scores[self._places])
        self._sorted = np.sort(self._codes)
        self.threshold, self.left = 0, max(0, request.count)
        self.is_done = self.left == 0

    def counts(self, shift: int) -> list[int]:
        """Of the local codes that go on from the threshold's digits with each digit."""
        bounds = self.threshold + (np.arange((1 << _DIGIT) + 1, dtype=np.uint64) << np.uint64(shift))
        places = np.searchsorted(self._sorted, bounds[:-1].astype(np.uint32)).tolist()
        last = bounds[-1] if bounds[-1] <= _LARGEST else None
        end = self._sorted.size if last is None else int(np.searchsorted(self._sorted, last.astype(np.uint32)))
        counts: list[int] = np.diff([*places, end]).tolist()
        return counts

    def narrow(self, counts: list[int], shift: int) -> None:
        """The threshold's next digit, from the counts of all processes: the largest codes are passed over first."""
        if self.is_done:
            return
        digit = len(counts) - 1
        while digit and counts[digit] < self.left:
            self.left -= counts[digit]
            digit -= 1
        self.threshold += digit << shift
        self.is_done = counts[digit] <= self.left  # all that begin so are wanted

    @property
    def ties(self) -> int:
        """How many of the local codes equal the threshold, if not all of those are wanted."""
        if self.is_done:
            return 0
        code = np.uint32(self.threshold)
        return int(np.searchsorted(self._sorted, code, "right") - np.searchsorted(self._sorted, code, "left"))

    def chosen(self, before: int) -> Ranks:
        """Local ones; ``before`` is how many ties come before them, in the whole tensor."""
        code = np.uint32(self.threshold)
        if self.is_done:
            return self._places[self._codes >= code]
        equal = np.flatnonzero(self._codes == code)[: max(0, self.left - before)]
        chosen: Ranks = self._places[np.sort(np.concatenate([np.flatnonzero(self._codes > code), equal]))]
        return chosen


def _over_processes(requests: Sequence[Request]) -> list[Ranks]:
    searches, part = [_Search(request) for request in requests], requests[0].part
    for shift in range(32 - _DIGIT, -1, -_DIGIT):
        if all(search.is_done for search in searches):
            break
        mine = torch.tensor([search.counts(shift) for search in searches])
        for search, counts in zip(searches, all_reduce(part, mine).tolist(), strict=True):
            search.narrow(counts, shift)
    if all(search.is_done for search in searches):
        return [search.chosen(0) for search in searches]
    before = sum_before(part, [search.ties for search in searches])
    return [search.chosen(number) for search, number in zip(searches, before, strict=True)]


def _codes(scores: Scores) -> npt.NDArray[np.uint32]:
    """Whole numbers in the order of the scores."""
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 and 0 are equal
    return bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))


def _distinct(groups: Iterable[Any]) -> list[Any]:
    return list({id(group): group for group in groups if group is not None}.values())
