"""The gaps against their definition, spelled out a byte at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cigl.common.errors import CiglError
from cigl.runtime.format.gaps import decode, encode


def by_hand(gaps):
    """(positions, elements covered) as the format's page says it."""
    place, positions = 0, []
    for byte in gaps:
        place += byte
        if byte < 255:
            positions.append(place)
            place += 1
    return positions, place


@st.composite
def patterns(draw):
    skips = draw(st.lists(st.one_of(st.integers(0, 5), st.integers(240, 270), st.integers(500, 1030)), max_size=20))
    positions = np.cumsum(np.array(skips, np.int64) + 1) - 1
    size = (int(positions[-1]) + 1 if skips else 0) + draw(st.integers(0, 800))
    return positions.astype(np.int64), size


@settings(deadline=None)
@given(patterns())
def test_there_and_back(pattern):
    positions, size = pattern
    gaps = encode(positions, size)
    assert gaps.dtype == np.uint8
    found, covered = by_hand(gaps.tolist())
    assert found == positions.tolist()
    assert 0 <= size - covered < 255
    assert decode(gaps, positions.size, size).tolist() == found


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 255), st.just(255)), max_size=30), st.integers(0, 9000), st.integers(0, 30))
def test_any_bytes_are_either_read_as_defined_or_refused(gaps, size, count):
    positions, covered = by_hand(gaps)
    raw = np.array(gaps, np.uint8)
    if len(positions) == count and 0 <= size - covered < 255:
        assert decode(raw, count, size).tolist() == positions
    else:
        with pytest.raises(CiglError):
            decode(raw, count, size)


@pytest.mark.parametrize(
    ("positions", "size", "gaps"),
    [
        ([], 0, []),
        ([], 254, []),
        ([], 255, [255]),
        ([0], 1, [0]),
        ([254], 255, [254]),
        ([255], 256, [255, 0]),
        ([509], 510, [255, 254]),
        ([510], 1100, [255, 255, 0, 255, 255]),
    ],
)
def test_at_the_edges(positions, size, gaps):
    assert encode(np.array(positions, np.int64), size).tolist() == gaps
    assert decode(np.array(gaps, np.uint8), len(positions), size).tolist() == positions


def test_a_few_bytes_ask_for_no_huge_tensor():
    with pytest.raises(CiglError, match="cover 255 elements, but the tensor has 1000000000000"):
        decode(np.array([255], np.uint8), 0, 10**12)
