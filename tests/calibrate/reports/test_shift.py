import pytest
import torch
from torch import nn

from cigl import CiglError
from cigl.calibrate import corrupt, under_shift

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


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
