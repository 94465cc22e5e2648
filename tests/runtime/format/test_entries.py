"""Class names and preprocessing in files that are not trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cigl.common.preprocessing import Preprocessing
from cigl.runtime.format.container import Damaged
from cigl.runtime.format.entries import entries, read_entries

GOOD = Preprocessing(32, [0.5] * 3, [0.25] * 3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def test_what_is_written_is_read():
    assert read_entries(entries(["a", "b"], GOOD)) == (("a", "b"), GOOD)
    assert entries(["a"], GOOD.to_dict()) == entries(["a"], GOOD)
    assert read_entries(entries(None, None)) == read_entries({}) == (None, None)


@given(json_values, st.sampled_from(["classes", "preprocessing"]))
def test_anything_else_is_refused_or_what_it_says(value, name):
    try:
        classes, preprocessing = read_entries({name: value})
    except Damaged:
        return
    assert entries(classes, preprocessing)[name] == value


@given(st.sampled_from(sorted(GOOD.to_dict())), json_values)
def test_one_entry_is_changed(name, value):
    changed = GOOD.to_dict() | {name: value}
    try:
        _, preprocessing = read_entries({"preprocessing": changed})
    except Damaged:
        return
    assert max(preprocessing.size) <= 4096
    assert preprocessing.to_dict() == changed or isinstance(value, (int, float))  # one number for both sides


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": ["a"] * 100_001},
        {"classes": ["\x1b]0;title\x07"]},
        {"preprocessing": GOOD.to_dict() | {"size": [10**9, 1]}},
        {"preprocessing": GOOD.to_dict() | {"mean": [10**400] * 3}},
        {"preprocessing": GOOD.to_dict() | {"std": [5e-324] * 3}},
        {"preprocessing": GOOD.to_dict() | {"interpolation": "__class__"}},
    ],
)
def test_entries_made_to_harm(wrong):
    with pytest.raises(Damaged):
        read_entries(wrong)
