import itertools

import pytest
import torch
from torch import nn

from cigl import CiglError
from cigl.calibrate import corrupt, under_shift
from cigl.calibrate.corrections.corruptions import KINDS

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


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


def test_refusals():
    for call, message in [
        (lambda: corrupt(IMAGES, "fog", 1), "unknown corruption 'fog'"),
        (lambda: corrupt(IMAGES, "nois", 1), "did you mean 'noise'"),
        (lambda: corrupt(IMAGES, "noise", 6), "from 1 .weak. to 5"),
        (lambda: corrupt((IMAGES * 255).byte(), "noise", 1), "divided by 255 first"),
        (lambda: corrupt(IMAGES * 2 - 1, "noise", 1), "before normalising"),
        (lambda: corrupt(torch.rand(4, 4), "noise", 1), "channels, height, width"),
        (lambda: under_shift(nn.Identity(), [], kinds=["fog"]), "unknown corruption"),
        (lambda: under_shift(nn.Identity(), [], kinds=[]), "at least one kind"),
        (lambda: under_shift(nn.Identity(), iter([])), "read only once"),
    ]:
        with pytest.raises(CiglError, match=message):
            call()


def test_a_report_per_severity(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    loader = [(IMAGES, torch.arange(6) % 4)] * 3
    seen = []

    def normalize(images):
        seen.append(images.min() >= 0)
        return (images - 0.5) / 0.5

    shift = under_shift(model, loader, kinds=["noise", "blur"], normalize=normalize, resamples=20)
    assert list(shift.reports) == ["noise", "blur"]
    assert all(list(row) == [0, 1, 2, 3, 4, 5] for row in shift.reports.values())
    assert shift["noise"][0] is shift["blur"][0]
    assert all(one.n == 18 for row in shift.reports.values() for one in row.values())
    assert all(seen)
    lines = str(shift).splitlines()
    assert len(lines) == 1 + 12
    assert "ece_15" in lines[0]
    assert shift.to_dict()["blur"]["5"]["n"] == 18
    for suffix in (".svg", ".png", ".pdf"):
        shift.figure(tmp_path / f"shift{suffix}")
        assert (tmp_path / f"shift{suffix}").stat().st_size > 1000


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


def test_shift_does_not_depend_on_the_batch_size():
    images, labels = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    shifts = [
        under_shift(
            model,
            list(zip(images.split(size), labels.split(size), strict=True)),
            kinds="noise",
            severities=iter([5]),
            resamples=5,
            members=(model for _ in range(2)),
        )
        for size in (7, 30)
    ]
    assert float(shifts[0]["noise"][5].nll) == pytest.approx(float(shifts[1]["noise"][5].nll), abs=1e-6)


def test_what_is_no_severity_and_no_batch():
    for severity in (True, 1.0, "3", 0, 6):
        with pytest.raises(CiglError, match=r"a whole number from 1 \(weak\)"):
            corrupt(IMAGES, "noise", severity)
    with pytest.raises(CiglError, match="images are ndarray"):
        corrupt(IMAGES.numpy(), "noise", 1)
    batch = {"images": IMAGES, "labels": torch.zeros(6, dtype=torch.long)}
    with pytest.raises(CiglError, match=r"a batch is a dict: under shift it must be \(images, labels\)"):
        under_shift(nn.Identity(), [batch], resamples=5)
