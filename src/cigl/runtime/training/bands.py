"""Steps that run together, a band of rows after the other.

A value of a block of images takes megabytes, more than a second-level cache holds. Where neighbouring steps have rows
of the same height, the band that one leaves is read by the next ones while it is still in the cache. A step that others
read around a row's own place (a kernel of three rows, say) is ahead of them by as many rows; what is only read at its
own place and soon forgotten has memory for one band, which *rolls*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cigl.runtime.program.interface import StepStruct, View
from cigl.runtime.program.steps import Kind

_CACHE = 3 << 18  # bytes that a band's values may take together: part of a second-level cache
_KINDS = (Kind.AFFINE, Kind.CONV, Kind.STATISTICS, Kind.MASK, Kind.WEIGHT_GRADIENT)
_VIEWS = {"in_": 1, "add": 2, "out": 4, "other": 8}

Reach = tuple[int, int]  # rows above and below its own that a step reads of its input


@dataclass(frozen=True)
class _Access:
    view: View
    bit: int
    is_kept: bool
    is_written: bool
    reach: Reach

    def overlaps(self, other: _Access) -> bool:
        ours, theirs = _span(self.view), _span(other.view)
        return self.is_kept == other.is_kept and ours[0] < theirs[1] and theirs[0] < ours[1]

    def is_same(self, other: _Access) -> bool:
        return self.is_kept == other.is_kept and bytes(self.view) == bytes(other.view)


def _span(view: View) -> tuple[int, int]:
    return view.at, view.at + view.height * view.row


def _accesses(step: StepStruct, reach: Reach) -> Iterator[_Access]:
    for name, bit in _VIEWS.items():
        view = getattr(step, name)
        if view.at >= 0 and not step.outside & bit:
            own = reach if name == "in_" else (0, 0)
            yield _Access(view, bit, bool(step.kept & bit), name == "out", own)


def set_bands(steps: Sequence[StepStruct], reaches: dict[int, Reach]) -> None:
    """Mark the steps that run together; ``reaches`` of steps that read other rows than their own."""
    accesses = [list(_accesses(step, reaches.get(n, (0, 0)))) for n, step in enumerate(steps)]
    first = 0
    while first < len(steps):
        last = first + 1
        while last < len(steps) and _may_join(steps, accesses, first, last):
            last += 1
        if last > first + 1:
            _band(steps, accesses, first, last)
        first = last


def _height(step: StepStruct) -> int:
    return int((step.in_ if step.out.at < 0 else step.out).height)


def _is_rowwise(step: StepStruct) -> bool:
    return step.kind in _KINDS and not step.per_batch and max(step.stride) <= 1


def _may_join(steps: Sequence[StepStruct], accesses: Sequence[list[_Access]], first: int, new: int) -> bool:
    """Whether a step's rows are those of the steps before it, and it leaves alone what these still need."""
    if not (_is_rowwise(steps[first]) and _is_rowwise(steps[new])):
        return False
    height = _height(steps[first])
    if any(access.view.height != height for number in (first, new) for access in accesses[number]):
        return False
    earlier = [access for each in accesses[first:new] for access in each]
    return not any(_conflict(before, access) for before in earlier for access in accesses[new])


def _conflict(before: _Access, access: _Access) -> bool:
    """Whether these can't go by the same rows, one band behind the other."""
    if not access.overlaps(before) or not (access.is_written or before.is_written):
        return False
    return not access.is_same(before) or (access.is_written and before.reach != (0, 0))


def _band(steps: Sequence[StepStruct], accesses: Sequence[list[_Access]], first: int, last: int) -> None:
    leads = _leads(accesses, first, last)
    if leads is None:
        return
    height = _height(steps[first])
    written = {bytes(a.view): a.view.row * 4 for each in accesses[first:last] for a in each if a.is_written}
    band = max(1, _CACHE // max(1, sum(written.values())))
    band -= band > 1 and band % 2
    if band >= height:
        return
    steps[first].banded = last - first
    for number in range(first, last):
        steps[number].band, steps[number].lead = band, leads[number - first]
    for number in range(first, last):
        for access in accesses[number]:
            if _rolls(access, steps, accesses, first, last):
                steps[number].rolling |= access.bit


def _leads(accesses: Sequence[list[_Access]], first: int, last: int) -> list[int] | None:
    """Rows by which each step is ahead of the last one; None if one would overwrite what is still read."""
    leads = [0] * (last - first)
    for reader in range(last - 1, first - 1, -1):
        for writer in range(first, reader):
            for access in accesses[reader]:
                if any(a.is_written and a.is_same(access) for a in accesses[writer]):
                    leads[writer - first] = max(leads[writer - first], leads[reader - first] + access.reach[1])
    for writer in range(first, last):
        for access in (each for each in accesses[writer] if each.is_written):
            for other in range(first, writer):
                touches = any(access.is_same(a) for a in accesses[other])
                if touches and leads[other - first] < leads[writer - first]:
                    return None
    return leads


def _rolls(
    access: _Access, steps: Sequence[StepStruct], accesses: Sequence[list[_Access]], first: int, last: int
) -> bool:
    """Whether a value is made here and read here alone, at its own place."""
    if access.is_kept:
        return False
    own = [
        (step, a)
        for step, each in zip(steps[first:last], accesses[first:last], strict=True)
        for a in each
        if a.is_same(access)
    ]
    if not own[0][1].is_written or any(step.lead or a.reach != (0, 0) for step, a in own):
        return False
    for number in range(last, len(steps)):
        if steps[number].per_batch:
            return True
        for later in accesses[number]:
            if later.overlaps(access):
                return later.is_written
    return True
