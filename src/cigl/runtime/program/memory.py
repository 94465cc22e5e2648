"""The arena: the memory that a program's values share.

Convolutions read their zero padding from the arena: each value has as much room around it as its readers need, zero
from the start and never written to. So padded values share memory only with those of the same geometry.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from cigl.runtime.program.interface import View
from cigl.runtime.program.layout import Layout


@dataclass(frozen=True, eq=False)
class Place:
    """A value's part of the arena, from float ``start`` to ``end``."""

    shape: tuple[int, ...]
    padding: tuple[int, int]
    view: View
    start: int
    end: int


class Arena:
    """Hands out places and takes them back."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.size = 0
        self._gaps: list[tuple[int, int]] = []  # free memory without padding, as (start, end), sorted
        self._padded: dict[tuple[tuple[int, ...], tuple[int, int]], list[Place]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], padding: tuple[int, int]) -> Place:
        free = self._padded[shape, padding]
        if free:
            return free.pop()
        view, size = self.layout.view(shape, padding)
        start = self._grow(size) if any(padding) else self._fill(size)
        view.at += start
        return Place(shape, padding, view, start, start + size)

    def give_back(self, place: Place) -> None:
        if any(place.padding):
            self._padded[place.shape, place.padding].append(place)
            return
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self._gaps, (place.start, place.end)]):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._gaps = merged

    def _fill(self, size: int) -> int:
        """Into the smallest gap that it fits."""
        fitting = [gap for gap in self._gaps if gap[1] - gap[0] >= size]
        if not fitting:
            return self._grow(size)
        start, end = min(fitting, key=lambda gap: gap[1] - gap[0])
        self._gaps.remove((start, end))
        if start + size < end:
            self._gaps = sorted([*self._gaps, (start + size, end)])
        return start

    def _grow(self, size: int) -> int:
        """At the end, where all memory is still zero."""
        self.size += size
        return self.size - size
