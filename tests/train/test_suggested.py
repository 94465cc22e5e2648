"""What `cigl train` chooses for a folder of images, and says."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import cigl.data
from cigl.cli import app
from cigl.common.errors import CiglError
from cigl.train.folder.run_folder import RunFolder
from cigl.train.suggested import suggested

runner = CliRunner()


@pytest.fixture
def photos(tmp_path):
    """Two classes that differ in their colour, of 24 images each."""
    rng = np.random.default_rng(0)
    for k in range(48):
        pixels = rng.integers(0, 120, (30, 40, 3), dtype=np.uint8)
        pixels[..., k % 2] += 100
        path = tmp_path / "photos" / ("red", "green")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


def test_it_depends_on_how_many_and_how_large_they_are(photos):
    keys, about = suggested(str(photos), {})
    assert (keys["model"], keys["image_size"], keys["batch_size"], keys["epochs"]) == ("convnet", 30, 9, 60)
    assert about.startswith("38 images of 2 classes to learn from, 10 to judge by (20 % of each class, held out")
    assert "chosen for 38 images of about 30 pixels: model convnet, image-size 30, " in about


def test_what_is_given_is_not_chosen(photos):
    keys, about = suggested(f"folder:{photos}", {"epochs": 10, "optimizer": "sgd", "val_split": 0.5})
    assert not {"epochs", "optimizer", "val_split"} & set(keys)
    assert (keys["lr"], keys["warmup_epochs"]) == (0.02, 1.0)
    assert about.startswith("24 images of 2 classes to learn from, 24 to judge by (50 %")


def test_other_data_has_nothing_to_choose():
    assert suggested("mnist1d", {}) == ({}, "")


def test_a_folder_of_photos_trains_from_one_option(photos, tmp_path):
    out = tmp_path / "run"
    result = runner.invoke(app, ["train", "--dataset", str(photos), "--epochs", "6", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "38 images of 2 classes to learn from, 10 to judge by" in result.output
    config = RunFolder(out).read_config()
    assert (config.model, config.optimizer, config.image_size, config.val_split) == ("convnet", "adamw", 30, 0.2)
    assert RunFolder(out).read_json("result.json")["test"]["report"]["accuracy"]["value"] > 0.8  # chance is 0.5


def test_the_part_that_is_held_out_is_the_same_and_has_its_share_of_each_class(photos):
    first, again = (cigl.data.open(str(photos)) for _ in range(2))
    assert (len(first.train), len(first.test)) == (38, 10)
    assert first.test.labels.bincount().tolist() == [5, 5]
    names = [set(map(bytes, part.files.test.paths)) for part in (first, again, cigl.data.open(str(photos), seed=1))]
    assert names[0] == names[1] != names[2]
    assert not names[0] & set(map(bytes, first.files.train.paths))


def test_a_share_that_leaves_nothing_is_refused(photos):
    with pytest.raises(CiglError, match=r"a share of 0\.001 leaves none to learn from or none to judge by"):
        cigl.data.open(str(photos), val_split=0.001)


def test_a_folder_around_the_folder_is_named(photos):
    with pytest.raises(CiglError, match=r"did you mean .*photos\?$"):
        cigl.data.open(str(photos.parent))


def test_a_folder_of_classes_is_checked(photos):
    result = runner.invoke(app, ["data", "check", str(photos)])
    assert result.exit_code == 0
    assert result.output.startswith("38 training images and 10 held out to judge by, 2 classes, 19 training images")
    assert f"cigl train --dataset {photos}  train on these images" in result.output


def test_fine_tuning_prunes_weights_that_are_given(photos, tmp_path):
    """What a network has learnt on these colours is not lost on the way to 80 % zeros."""
    first, second = tmp_path / "a", tmp_path / "b"
    more = ["--model", "convnet", "--image-size", "30", "--quiet"]
    dense = ["train", "--dataset", str(photos), *more, "--method", "dense", "--sparsity", "0", "--epochs", "6"]
    assert runner.invoke(app, [*dense, "--out", str(first)]).exit_code == 0
    tune = ["train", "--dataset", str(photos), *more, "--pretrained", str(first / "model.safetensors"), "--epochs", "4"]
    result = runner.invoke(app, [*tune, "--out", str(second)])
    assert result.exit_code == 0, result.output
    run = RunFolder(second)
    assert run.read_config().method == "gmp"
    assert run.read_json("result.json")["density"] == pytest.approx(0.2, abs=0.01)
    assert run.read_json("result.json")["test"]["report"]["accuracy"]["value"] > 0.8
    (first / "model.safetensors").unlink()  # no longer needed
    assert runner.invoke(app, ["evaluate", str(second)]).exit_code == 0
