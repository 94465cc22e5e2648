"""The cheapest division of a graph into two sides."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Hashable

_NOTHING = 1e-12  # of a cost; what rounding leaves


class Cut:
    """Edges with costs; an edge is paid for if it begins on the source's side and ends on the other."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))

    def edge(self, begin: Hashable, end: Hashable, cost: float) -> None:
        self._left[begin][end] += cost
        self._left[end][begin] += 0.0

    def min_cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The source's side of the cheapest cut (Dinic 1970: fill all shortest paths at once, until none is left)."""
        while True:
            steps = self._steps(source)
            if sink not in steps:
                return set(steps)
            self._fill(source, sink, steps)

    def _steps(self, source: Hashable) -> dict[Hashable, int]:
        """How far it is to what can be reached over edges that have room left."""
        steps = {source: 0}
        waiting = deque([source])
        while waiting:
            begin = waiting.popleft()
            for end, room in self._left[begin].items():
                if room > _NOTHING and end not in steps:
                    steps[end] = steps[begin] + 1
                    waiting.append(end)
        return steps

    def _fill(self, source: Hashable, sink: Hashable, steps: dict[Hashable, int]) -> None:
        """Fill paths on which each node is a step further, until there is none. No edge is tried again in vain."""
        ends = {node: list(self._left[node]) for node in steps}  # of edges that have not been tried in vain
        path = [source]
        while path:
            begin = path[-1]
            if begin == sink:
                edges = list(itertools.pairwise(path))
                room = min(self._left[begin][end] for begin, end in edges)
                for begin, end in edges:
                    self._left[begin][end] -= room
                    self._left[end][begin] += room
                full = next(n for n, (begin, end) in enumerate(edges) if self._left[begin][end] <= _NOTHING)
                path = path[: full + 1]
                continue
            while ends[begin]:
                end = ends[begin][-1]
                if self._left[begin][end] > _NOTHING and steps.get(end) == steps[begin] + 1:
                    path.append(end)
                    break
                ends[begin].pop()
            else:
                path.pop()
                if path:
                    ends[path[-1]].pop()
