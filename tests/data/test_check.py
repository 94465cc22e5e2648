"""Folders of images are checked before training, once."""

import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import cigl.data.check as checking
from cigl.cli import app
from cigl.common.errors import CiglError, CiglWarning
from cigl.data.check import check_images, require_readable
from cigl.data.splits.folder import scan


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(16):
        path = (
            tmp_path / "photos" / ("train" if k < 12 else "val") / "ab"[k % 2] / f"{k:02}.{'png' if k % 3 else 'jpg'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (48 + k, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def spoil(photos):
    """Half of a JPEG, an empty file, a class without test images, a copy, and an image in two classes."""
    (photos / "train" / "a" / "00.jpg").write_bytes((photos / "train" / "a" / "00.jpg").read_bytes()[:-800])
    (photos / "train" / "a" / "02.png").write_bytes(b"")
    (photos / "train" / "c").mkdir()
    Image.new("RGB", (40, 40)).save(photos / "train" / "c" / "1.png")
    shutil.copy(photos / "train" / "b" / "01.png", photos / "val" / "b" / "copy.png")
    shutil.copy(photos / "train" / "b" / "03.jpg", photos / "train" / "a" / "copy.jpg")


def test_a_good_folder_is_read_once(photos, monkeypatch):
    found = check_images(scan(photos))
    assert found.problems() == []
    assert (found.smallest, found.largest) == ((40, 48), (40, 63))
    monkeypatch.setattr(checking, "examined", lambda path: pytest.fail("read again"))
    require_readable(scan(photos))
    Image.new("RGB", (40, 40)).save(photos / "train" / "a" / "new.png")
    with pytest.raises(pytest.fail.Exception):
        require_readable(scan(photos))


def test_what_is_wrong_has_a_sentence_each(photos):
    spoil(photos)
    found = check_images(scan(photos)).problems()
    wanted = [
        "no images of the class 'c'",
        "00.jpg can't be read",
        "02.png can't be read",
        "copy.png is the same file as",
    ]
    assert len(found) == 5
    for part in [*wanted, "of another class"]:
        assert [part in each for each in found].count(True) == 1
    assert all(each.endswith(".") and "\n" not in each for each in found)
    with pytest.raises(CiglError, match=r"2 of 19 images can't be read: repair or remove .* The first: .*00\.jpg"):
        require_readable(scan(photos))


def test_processes_share_the_work(photos):
    (photos / "train" / "a" / "00.jpg").write_bytes(b"")
    with pytest.raises(CiglError, match="1 of 16"):
        require_readable(scan(photos), share=(0, 2))
    require_readable(scan(photos), share=(1, 2))
    with pytest.raises(CiglError, match="1 of 16"):  # half of it is not all of it
        require_readable(scan(photos))


def test_of_very_many_images_only_the_command_reads_all(photos, monkeypatch):
    monkeypatch.setattr(checking, "MOST", 3)
    with pytest.warns(CiglWarning, match="`cigl data check .*` does it once"):
        require_readable(scan(photos))


def test_the_command(photos):
    run = CliRunner().invoke
    good = run(app, ["data", "check", str(photos)])
    assert good.exit_code == 0
    assert (
        "12 training images and 4 in val/, 2 classes, 6 training images each, 40 x 48 to 40 x 63 pixels" in good.stdout
    )
    spoil(photos)
    bad = run(app, ["data", "check", f"folder:{photos}"])
    assert bad.exit_code == 1
    assert bad.stderr.count("problem: ") == 5
    nothing = run(app, ["data", "check", str(photos / "val" / "a")])
    assert (nothing.exit_code, "no folders of images that could be classes" in nothing.stderr) == (2, True)
