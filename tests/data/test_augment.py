"""Crops against the plain way: pad, cut, mirror, one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cigl.data.augment import ImageStore
from cigl.data.splits.draw import below, raw


def random_images(count, channels=3, height=8, width=12):
    return torch.from_numpy(
        np.random.default_rng(count).integers(1, 256, (count, channels, height, width), dtype=np.uint8)
    )


def plainly(image, pad, dy, dx, flip):
    """What a reader expects: zeros around, a window of the same size, perhaps mirrored."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=torch.uint8)
    padded[:, pad : pad + height, pad : pad + width] = image
    crop = padded[:, pad + dy : pad + dy + height, pad + dx : pad + dx + width]
    return crop.flip(2) if flip else crop


@settings(deadline=None)
@given(st.integers(1, 6), st.sampled_from([1, 3]), st.integers(4, 9), st.integers(4, 9), st.integers(1, 4), st.data())
def test_every_shift_on_both_paths(count, channels, height, width, pad, data):
    pixels = random_images(count, channels, height, width)
    store = ImageStore(pixels, pad)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8)))
    shift = st.lists(st.integers(-pad, pad), min_size=len(rows), max_size=len(rows))
    dy, dx = torch.tensor(data.draw(shift)), torch.tensor(data.draw(shift))
    flips = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    expected = torch.stack([plainly(pixels[r], pad, y, x, f) for r, y, x, f in zip(rows, dy, dx, flips, strict=True)])
    assert torch.equal(store._gather_by_windows(rows, dy, dx, flips), expected)
    assert torch.equal(store._gather_by_index(rows, dy, dx, flips), expected)
    assert torch.equal(store.plain(rows), pixels[rows])


def test_the_draw():
    pixels, rows = random_images(50, 3, 32, 32), torch.arange(50)
    crops = ImageStore(pixels, 4).crops(rows, seed=7, epoch=2, number=3)
    words = raw(150, 7, "augment", 2, 3)
    dy, dx, flips = below(words[:50], 9) - 4, below(words[50:100], 9) - 4, below(words[100:], 2)
    for k in range(50):
        assert torch.equal(crops[k], plainly(pixels[k], 4, int(dy[k]), int(dx[k]), bool(flips[k])))


def test_all_shifts_occur_and_half_is_mirrored():
    pixels = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    pixels[:, 0, 4, 4] = 1
    pixels[:, 0, 4, 5] = 2  # right of the first: left of it when mirrored
    crops = ImageStore(pixels, 4).crops(torch.arange(4000), 0, 0, 0)
    spots = {tuple(spot[1:]) for spot in (crops == 1).nonzero()[:, 1:].tolist()}
    assert spots == {(y, x) for y in range(9) for x in range(9)}
    where = (crops == 2).flatten(1).float().argmax(1) - (crops == 1).flatten(1).float().argmax(1)
    both = ((crops == 2).flatten(1).any(1)) & ((crops == 1).flatten(1).any(1))
    assert (where[both] == 1).float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_the_store_is_not_changed():
    pixels = random_images(10)
    store = ImageStore(pixels, 2)
    before = store.whole.clone()
    store.crops(torch.arange(10), 0, 0, 0).zero_()
    assert torch.equal(store.whole, before)
