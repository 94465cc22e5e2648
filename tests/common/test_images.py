"""Images as they are given: files, PIL images, arrays, tensors."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from cigl.common.errors import CiglError
from cigl.common.images import image_files, read, separate, to_image

ARRAY = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def test_all_ways_give_the_same(tmp_path):
    Image.fromarray(ARRAY).save(tmp_path / "a.png")
    alpha = np.dstack([ARRAY, np.full((6, 5, 1), 7, np.uint8)])
    for given in (
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(ARRAY),
        ARRAY,
        ARRAY[:, ::-1][:, ::-1],
        torch.from_numpy(ARRAY).permute(2, 0, 1),
        alpha,
        torch.from_numpy(alpha).permute(2, 0, 1),
    ):
        assert np.array_equal(np.asarray(to_image(given)), ARRAY)


def test_grey_and_palettes(tmp_path):
    grey = ARRAY[:, :, 0]
    for given in (grey, grey[:, :, None], torch.from_numpy(grey), torch.from_numpy(grey)[None], Image.fromarray(grey)):
        assert np.array_equal(np.asarray(to_image(given, "L")), grey)
        assert np.array_equal(np.asarray(to_image(given)), np.dstack([grey] * 3))
    flat = Image.new("RGB", (4, 6), (10, 200, 30))
    flat.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "palette.gif")
    assert read(tmp_path / "palette.gif").getpixel((0, 0)) == (10, 200, 30)


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    Image.fromarray(np.full((4, 4), 20_000, np.uint16)).save(tmp_path / "deep.png")
    assert read(tmp_path / "deep.png").getpixel((0, 0)) == (77, 77, 77)
    assert read(tmp_path / "deep.png", "L").getpixel((0, 0)) == 77


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ARRAY / 255, "bytes from 0 to 255"),
        (torch.zeros(3, 4, 4), "bytes from 0 to 255"),
        (ARRAY.transpose(2, 0, 1).copy(), "not that of an image"),
        (ARRAY[:, :, :2], "not that of an image"),
        (np.zeros((0, 4, 3), np.uint8), "not that of an image"),
        (ARRAY[0, 0], "not that of an image"),
        (3, "not a int"),
        (None, "not a NoneType"),
    ],
)
def test_what_is_no_image(given, message):
    with pytest.raises(CiglError, match=message):
        to_image(given)


def test_damaged_files_are_named(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.tile(ARRAY, (50, 50, 1))).save(buffer, "PNG")
    for name, content in (
        ("cut.png", buffer.getvalue()[: len(buffer.getvalue()) // 2]),
        ("text.jpg", b"hello"),
        ("none.gif", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CiglError, match=rf"{name} can't be read as an image: [^/]+\.$"):
            read(tmp_path / name)
    with pytest.raises(CiglError, match=r"lost.png can't be read as an image: No such file or directory\.$"):
        read(tmp_path / "lost.png")


def test_batches_and_lists():
    for batch in (np.stack([ARRAY] * 3), torch.zeros(3, 3, 6, 4), [ARRAY] * 3, (ARRAY for _ in range(3))):
        assert len(separate(batch)) == 3
    for single in (ARRAY, torch.zeros(3, 6, 4), "a.png", Image.fromarray(ARRAY), None):
        assert len(separate(single)) == 1
    assert separate([]) == []


def test_folders_are_searched(tmp_path):
    for name in ("b.JPG", "a/c.png", "a/d.txt", ".hidden.png", "a/e.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert image_files(tmp_path) == [str(tmp_path / name) for name in ("a/c.png", "a/e.webp", "b.JPG")]
