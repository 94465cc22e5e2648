"""What an image becomes before a model sees it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import cigl
from cigl.common.errors import CiglError
from cigl.common.preprocessing import LONGEST_NAME, Preprocessing, centre_box, checked_classes
from cigl.common.text import printable

RGB = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.5)}
sides = st.integers(1, 3000)


@given(sides, sides, st.integers(1, 300), st.integers(1, 300), st.floats(0.1, 1))
def test_the_middle(width, height, tall, wide, crop):
    left, upper, right, lower = centre_box(width, height, (tall, wide), crop)
    assert (right - left) * tall == pytest.approx((lower - upper) * wide)
    assert left + right == pytest.approx(width)
    assert upper + lower == pytest.approx(height)
    assert min(left, upper) >= 0
    assert max((right - left) / width, (lower - upper) / height) == pytest.approx(crop)


@given(sides, sides, st.integers(1, 300))
def test_a_square_is_exact(width, height, size):
    """Whatever the size, the box is the shorter side to the last bit: training and evaluation depend on it."""
    left, upper, right, lower = centre_box(width, height, (size, size), 7 / 8)
    side = min(width, height) * (7 / 8)
    assert (left, upper) == ((width - side) / 2, (height - side) / 2)
    assert (right, lower) == (left + side, upper + side)


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_an_image_of_the_right_size_stays_as_it_is():
    array = picture(32, 48)
    assert np.array_equal(Preprocessing((32, 48), **RGB).pixels(array), array.transpose(2, 0, 1))


def test_crop_and_resize_are_pillows():
    """The usual way: all of the image to 256 pixels, of these the middle 224."""
    array = picture(512, 512)
    for name, method in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        expected = Image.fromarray(array).resize((256, 256), method).crop((16, 16, 240, 240))
        found = Preprocessing(224, **RGB, crop=224 / 256, interpolation=name).pixels(array)
        assert np.array_equal(found, np.asarray(expected).transpose(2, 0, 1))


def test_values_are_normalised():
    preprocessing = Preprocessing((4, 6), **RGB)
    pixels = torch.randint(0, 256, (2, 3, 4, 6), dtype=torch.uint8)
    mean, std = (torch.tensor(RGB[name]).view(3, 1, 1) for name in ("mean", "std"))
    torch.testing.assert_close(preprocessing.normalised(pixels), (pixels / 255 - mean) / std, atol=1e-6, rtol=1e-6)


def test_grey():
    preprocessing = Preprocessing(5, [0.5], [0.5])
    assert (preprocessing.mode, preprocessing.shape) == ("L", (1, 5, 5))
    array = picture(5, 5)
    assert np.array_equal(preprocessing.pixels(array[:, :, 0]), array[None, :, :, 0])
    assert np.array_equal(preprocessing.pixels(np.repeat(array[:, :, :1], 3, 2)), array[None, :, :, 0])
    assert np.array_equal(preprocessing.pixels(array)[0], np.asarray(Image.fromarray(array).convert("L")))


@given(
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3)), min_size=3, max_size=3),
    st.floats(0.001, 1),
    st.sampled_from(["bilinear", "bicubic"]),
)
def test_plain_data_gives_the_same_again(size, normal, crop, interpolation):
    mean, std = zip(*normal, strict=True)
    made = Preprocessing(size, mean, std, crop=crop, interpolation=interpolation)
    assert Preprocessing.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": (32, 5000)}, "from 1 to 4096"),
        ({"size": (32, 2.5)}, "size is"),
        ({"size": "32"}, "size is '32'"),
        ({"size": True}, "size is True"),
        ({"mean": (0.5, 0.5)}, "three numbers each for RGB, or one for grey"),
        ({"mean": 0.5}, "three numbers"),
        ({"std": (0.5,)}, "three numbers"),
        ({"std": (0.2, 0.2, 0.0)}, "std positive"),
        ({"mean": (float("nan"), 0, 0)}, "three numbers"),
        ({"mean": (10**400, 0, 0)}, "three numbers"),
        ({"crop": 0}, "crop is 0"),
        ({"crop": 1.5}, "crop is 1.5"),
        ({"interpolation": "cubic"}, "bilinear or bicubic"),
    ],
)
def test_what_can_not_be(changes, message):
    with pytest.raises(CiglError, match=message):
        cigl.Preprocessing(**{"size": 32, **RGB, **changes})


@pytest.mark.parametrize(
    "changes", [{"mode": "L"}, {"value_range": [0, 255]}, {"value_range": None}, {"more": 1}, {"mode": ["RGB"]}]
)
def test_plain_data_that_means_something_else(changes):
    with pytest.raises(CiglError, match="preprocessing"):
        Preprocessing.from_dict({**Preprocessing(32, **RGB).to_dict(), **changes})


def test_names_of_classes():
    assert checked_classes(["crane", "crane", "São Tomé"]) == ("crane", "crane", "São Tomé")
    for wrong in ([], "ab", [1], [""], ["a\nb"], ["\x1b[31m"], ["a" * (LONGEST_NAME + 1)], {"a": 1}):
        with pytest.raises(CiglError, match="class"):
            checked_classes(wrong)
    assert printable("a\x1b[31m\udcff") == "a�[31m�"
