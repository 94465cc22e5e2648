"""The cheapest division of a graph into two sides."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable


class Cut:
    """Edges with costs; an edge is paid for if it begins on the source's side and ends on the other."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))

    def edge(self, begin: Hashable, end: Hashable, cost: float) -> None:
        self._left[begin][end] += cost
        self._left[end][begin] += 0.0

    def side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The source's side of the cheapest cut (Edmonds & Karp 1972: fill shortest paths until none is left)."""
        while True:
            came = self._reach(source)
            if sink not in came:
                return set(came)
            path, at = [], sink
            while at != source:
                path.append((came[at], at))
                at = came[at]
            room = min(self._left[begin][end] for begin, end in path)
            for begin, end in path:
                self._left[begin][end] -= room
                self._left[end][begin] += room

    def _reach(self, source: Hashable) -> dict[Hashable, Hashable]:
        """What can be reached over edges that have room left, each with the node before it."""
        came: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting:
            begin = waiting.popleft()
            for end, room in self._left[begin].items():
                if room > 1e-12 and end not in came:
                    came[end] = begin
                    waiting.append(end)
        return came
