"""Runs on somebody's own folder of images."""

import json

import numpy as np
import pytest
from PIL import Image

from cigl.common.errors import CiglError, CiglWarning
from cigl.train.config import Config
from cigl.train.folder.finished import finished_run
from cigl.train.run import resume, train
from cigl.train.trainer import Splits

pytestmark = pytest.mark.filterwarnings("ignore:.*snapshots will be averaged", "ignore:.*topology will never change")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("CIGL_DATA", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for part, each in (("train", (30, 20, 10)), ("val", (4, 4, 4))):
        for name, count in zip("abc", each, strict=True):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for k in range(count):
                Image.fromarray(rng.integers(0, 256, (20, 16, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    return tmp_path / "photos"


def config(photos, **keys):
    return Config(dataset=f"folder:{photos}", model="mlp-8", batch_size=8, epochs=2, workers=0, **keys)


def test_train_size_has_every_class_in_its_share(photos):
    splits = Splits.of(config(photos, train_size=30, seed=1))
    assert np.bincount(splits.train.labels).tolist() == [15, 10, 5]
    assert not np.array_equal(
        splits.train._listing.paths, Splits.of(config(photos, train_size=30, seed=2)).train._listing.paths
    )
    first = Splits.of(config(photos, train_size=30, subset="first"))
    assert np.bincount(first.train.labels).tolist() == [30]
    for path in sorted((photos / "train" / "c").iterdir())[1:]:
        path.unlink()
    with pytest.warns(CiglWarning, match=r"of 8 training examples none are of 'c': raise train_size"):
        Splits.of(config(photos, train_size=8))


def test_a_damaged_image_is_found_before_there_is_a_folder(photos, tmp_path):
    (photos / "val" / "b" / "1.png").write_bytes(b"nothing")
    with pytest.raises(CiglError, match=r"1 of 72 images can't be read: .*`cigl data check .*b/1\.png"):
        train(config(photos), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_run_says_what_becomes_of_an_image(photos, tmp_path):
    train(config(photos, image_size=12), tmp_path / "run")
    about = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (about["shape"], about["classes"], about["train"], about["test"]) == ([3, 12, 12], ["a", "b", "c"], 60, 12)
    assert about["preprocessing"] == finished_run(tmp_path / "run").preprocessing.to_dict()


def test_a_folder_that_has_changed_since(photos, tmp_path):
    def stop(trainer, row):
        if row is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(photos), tmp_path / "run", progress=stop)
    Image.new("RGB", (16, 16)).save(photos / "val" / "a" / "new.png")
    with pytest.raises(CiglError, match=r"has changed since the run began \(test: 12, now 13\): put it back"):
        resume(tmp_path / "run")
    (photos / "val" / "a" / "new.png").unlink()
    resume(tmp_path / "run")
