"""Crops of single images."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cigl.data.splits.draw import raw
from cigl.data.splits.picture import random_box, random_crop


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 10**6))
def test_crops_stay_in_bounds(width, height, seed):
    left, upper, right, lower = random_box(width, height, raw(41, seed, "picture", 0, 0))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


@given(st.integers(64, 3000), st.integers(64, 3000), st.integers(0, 10**6))
def test_crops_have_the_published_area_and_shape(width, height, seed):
    left, upper, right, lower = random_box(width, height, raw(41, seed, "picture", 0, 0))
    w, h = right - left, lower - upper
    longest = max(width / height, height / width)
    if longest < 4 / 3:  # else it may be the middle, which keeps as much as it can
        assert 0.07 < w * h / (width * height) <= 1
    assert 0.7 < w / h < 1.4


def test_areas_are_uniform():
    shares = []
    for seed in range(2000):
        left, upper, right, lower = random_box(1000, 1000, raw(41, seed, "picture", 0, 0))
        shares.append((right - left) * (lower - upper) / 1e6)
    assert 0.08 <= min(shares) < 0.1
    # large ones fit less often, so the mean lies a little below (0.08 + 1) / 2
    assert 0.46 < np.mean(shares) < 0.54


def test_a_key_decides_and_half_is_mirrored():
    ramp = Image.fromarray(np.tile(np.arange(0, 256, 4, dtype=np.uint8)[None, :, None], (64, 1, 3)))
    crops = [random_crop(ramp, 32, (0, 1, index)) for index in range(200)]
    assert np.array_equal(crops[3], random_crop(ramp, 32, (0, 1, 3)))
    assert not np.array_equal(crops[3], crops[4])
    mirrored = sum(int(c[0, 0, 0]) > int(c[0, 0, -1]) for c in crops)
    assert 75 < mirrored < 125
