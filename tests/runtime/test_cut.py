"""The cheapest cut, against all cuts."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from cigl.runtime.cut import Cut

NODES = ["source", "a", "b", "c", "d", "sink"]


def cost(edges, side):
    return sum(each for begin, end, each in edges if begin in side and end not in side)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NODES), st.sampled_from(NODES), st.integers(0, 9).map(float) | st.just(math.inf)
        ).filter(lambda edge: edge[0] != edge[1]),
        max_size=14,
    )
)
def test_no_cut_is_cheaper(edges):
    edges = [edge for edge in edges if edge[:2] != ("source", "sink")]
    free = NODES[1:-1]
    sides = [{"source", *chosen} for size in range(5) for chosen in itertools.combinations(free, size)]
    best = min(cost(edges, side) for side in sides)
    if math.isinf(best):
        return
    cut = Cut()
    for edge in edges:
        cut.edge(*edge)
    assert cost(edges, cut.min_cut("source", "sink")) == best
