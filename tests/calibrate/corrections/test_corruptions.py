import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import nn

from cigl.calibrate import corrupt
from cigl.calibrate.corrections.corruptions import KINDS

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SEVERITIES = range(1, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_each_severity_is_worse(kind):
    smooth = nn.functional.interpolate(IMAGES[..., ::8, ::8], (32, 32), mode="bilinear")
    damage = [float((corrupt(smooth, kind, severity) - smooth).square().mean()) for severity in range(1, 6)]
    assert damage == sorted(damage)
    assert damage[0] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_form_stays(kind, dtype):
    images = IMAGES.to(dtype)
    kept = images.clone()
    worse = corrupt(images, kind, 3)
    assert (worse.shape, worse.dtype) == (images.shape, dtype)
    assert 0 <= worse.min() <= worse.max() <= 1
    assert torch.equal(images, kept)
    for shape in ((3, 32, 32), (2, 3, 3, 32, 32), (1, 1, 5, 9), (0, 3, 8, 8)):
        assert corrupt(torch.rand(shape), kind, 5).shape == shape


@pytest.mark.parametrize("kind", KINDS)
def test_seeded(kind):
    state = torch.get_rng_state()
    assert torch.equal(corrupt(IMAGES, kind, 2), corrupt(IMAGES, kind, 2))
    random = not torch.equal(corrupt(IMAGES, kind, 2, seed=1), corrupt(IMAGES, kind, 2))
    assert random == (kind in ("noise", "haze"))
    assert torch.equal(torch.get_rng_state(), state)


def test_by_hand():
    image = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    assert torch.allclose(corrupt(image, "contrast", 2), torch.tensor([[[0.25, 0.75], [0.25, 0.75]]]))
    flat = torch.full((1, 8, 8), 0.4)
    assert torch.allclose(corrupt(flat, "blur", 5), flat)
    assert torch.allclose(corrupt(flat, "pixelate", 5), flat)
    square = torch.tensor([[[0.0, 0.2, 0.4], [0.6, 0.8, 0.1], [0.3, 0.5, 0.9]]])  # blocks of 2, cut at the border
    blocks = torch.tensor([[[0.4, 0.4, 0.25], [0.4, 0.4, 0.25], [0.4, 0.4, 0.9]]])
    assert torch.allclose(corrupt(square, "pixelate", 1), blocks)
    assert (corrupt(flat, "haze", 1) > flat).all()
    assert corrupt(torch.full((1, 200, 200), 0.5), "noise", 1).std() == pytest.approx(0.04, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [5, 32])  # torch fills small and large tensors by different rules
def test_an_image_depends_on_its_number_alone(kind, size):
    images = torch.rand(6, 1, size, size, generator=torch.Generator().manual_seed(1))
    whole = corrupt(images, kind, 3)
    parts = [corrupt(images[a:b], kind, 3, first=a) for a, b in ((0, 1), (1, 3), (3, 6))]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
    assert kind not in ("noise", "haze") or not torch.equal(corrupt(images[:1], kind, 3, first=1), whole[:1])


@pytest.mark.parametrize("kind", KINDS)
def test_severities_differ_from_28_pixels_on(kind):
    images = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    made = [corrupt(images, kind, severity) for severity in range(1, 6)]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(made))


# Each strength by what it does, so that a report of another version says the same.


def test_noise_has_these_deviations():
    flat = torch.full((1, 300, 300), 0.5)
    deviations = [float((corrupt(flat, "noise", severity) - 0.5).std()) for severity in SEVERITIES]
    assert deviations == pytest.approx([0.04, 0.08, 0.12, 0.18, 0.248], rel=0.01)  # 0.26, and cut off at 0 and 1


def test_blur_is_scipys():
    image = torch.rand(64, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for severity, width in zip(SEVERITIES, (0.4, 0.6, 0.8, 1.1, 1.5), strict=True):
        deviation = width * 64 / 32
        expected = gaussian_filter(image.numpy(), deviation, mode="nearest", radius=round(3 * deviation))
        assert np.allclose(corrupt(image[None], "blur", severity)[0].numpy(), expected, atol=1e-6)


def test_contrast_keeps_these_shares():
    grey = IMAGES[0, :1]
    kept = [float(corrupt(grey, "contrast", severity).std() / grey.std()) for severity in SEVERITIES]
    assert kept == pytest.approx([0.75, 0.5, 0.4, 0.3, 0.15])


def test_haze_has_these_densities():
    """On black, it is its own thickness: about the density, between a half and one and a half of it."""
    black = torch.zeros(50, 3, 32, 32)
    for severity, density in zip(SEVERITIES, (0.2, 0.35, 0.5, 0.65, 0.8), strict=True):
        haze = corrupt(black, "haze", severity)
        assert torch.equal(haze[:, 0], haze[:, 2])
        assert float(haze.mean()) == pytest.approx(density, rel=0.02)
        assert density / 2 <= float(haze.min()) <= float(haze.max()) <= min(1.0, 1.5 * density)


def test_pixels_have_these_widths():
    image = torch.rand(1, 64, 70, generator=torch.Generator().manual_seed(1))
    widths = [int((corrupt(image, "pixelate", s)[0, 0].diff() != 0).nonzero()[0]) + 1 for s in SEVERITIES]
    assert widths == [4, 6, 8, 11, 14]
