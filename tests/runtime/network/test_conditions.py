"""Conditions on sizes: the same as Python's own arithmetic, and nothing but arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cigl.runtime.network.conditions import as_source, from_source, holds, is_condition

SIZES = ["L['x'].size()[0]", "L['x'].size()[1]", "L['b']['y'].size()[0]"]
INPUTS = {"L['x']": 0, "L['b']['y']": 1}
numbers = st.recursive(
    st.sampled_from(SIZES) | st.integers(0, 9).map(str),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner)
        | st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.integers(1, 9))
    ),
    max_leaves=5,
)
comparisons = st.builds("{} {} {}".format, numbers, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers)
sources = comparisons | st.builds("({}) {} not ({})".format, comparisons, st.sampled_from(["and", "or"]), comparisons)


class Sized:
    def __init__(self, shape):
        self.shape = shape

    def size(self):
        return self.shape


@given(sources, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_the_same_as_python(source, sizes):
    shapes = [tuple(sizes[:2]), tuple(sizes[2:])]
    condition = from_source(source, INPUTS)
    assert condition is not None
    assert is_condition(condition)
    wanted = eval(source, {"L": {"x": Sized(shapes[0]), "b": {"y": Sized(shapes[1])}}})
    assert holds(condition, shapes) == bool(wanted)


def test_what_can_not_be_computed_does_not_hold():
    assert not holds(["==", ["//", 1, ["size", 0, 0]], 1], [(0,)])
    assert not holds(["==", ["size", 0, 3], 1], [(1, 2)])


@pytest.mark.parametrize("source", ["__import__('os')", "L['z'].size()[0] == 1", "x ==", "f(L['x'].size()[0])", "3"])
def test_anything_else_is_none(source):
    assert from_source(source, INPUTS) is None


@pytest.mark.parametrize(
    "data",
    ["x", None, True, [], ["size"], ["size", 0, -1], ["size", 0, 999], ["eval", 1], ["+", 1], ["==", 1, 2, 3], [["=="]],
     ["not", 1, 2], ["==", 1, 2**70], ["==", 1.5, 1]],
)  # fmt: skip
def test_other_data_is_refused(data):
    assert not is_condition(data)


def test_too_deep():
    deep = 1
    for _ in range(100):
        deep = ["+", deep, 1]
    assert not is_condition(deep)


def test_for_messages():
    condition = from_source("(L['x'].size()[1] % 4) == 0", INPUTS)
    assert as_source(condition, ["x", "b['y']"]) == "(x.shape[1] % 4) == 0"
    assert from_source("1 < L['x'].size()[0]", INPUTS) == [">", ["size", 0, 0], 1]
