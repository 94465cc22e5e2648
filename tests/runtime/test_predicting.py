"""From images to labels and calibrated probabilities, with files and without."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import cigl
from cigl.common.errors import CiglError
from cigl.runtime.format import container

NAMES = ["cat", "dog", "horse"]
PREPROCESSING = cigl.Preprocessing(8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5), crop=0.8)
OLD = Path(__file__).parent / "version-1.cigl"


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{k}.png" for k in range(3)]
    for k, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (20 + k, 30 - k, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "model.cigl"
    cigl.save(model, path, temperature=2.5, classes=NAMES, preprocessing=PREPROCESSING)
    return path


def expected(model, photos, temperature):
    """Step by step, in Pillow and plain torch: 0.8 of the shorter side in the middle, 8 x 8."""
    rows = []
    for path in photos:
        image = Image.open(path)
        side = 0.8 * min(image.size)
        left, upper = ((size - side) / 2 for size in image.size)
        small = image.resize((8, 8), Image.Resampling.BILINEAR, box=(left, upper, left + side, upper + side))
        rows.append(torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (PREPROCESSING.mean, PREPROCESSING.std))
    return (model((torch.stack(rows) - mean) / std) / temperature).softmax(1).detach()


def test_a_file_is_complete(model, photos, saved):
    fast = cigl.load(saved)
    found = fast.predict(photos)
    right = expected(model, photos, 2.5)
    torch.testing.assert_close(found.probabilities, right, atol=1e-5, rtol=1e-4)
    assert found.labels == [NAMES[k] for k in right.argmax(1)]
    assert torch.equal(found.confidences, found.probabilities.amax(1))
    assert (found.classes, len(found)) == (tuple(NAMES), 3)
    assert (fast.classes, fast.preprocessing) == (tuple(NAMES), PREPROCESSING)
    best = found.top(2)[1]
    assert [name for name, _ in best] == [NAMES[k] for k in right[1].topk(2).indices]
    assert [len(row) for row in found.top(9)] == [3, 3, 3]


def test_every_kind_of_image(photos, saved):
    fast = cigl.load(saved)
    right = fast.predict(photos).probabilities
    arrays = [np.asarray(Image.open(path)) for path in photos]
    for images in (
        [str(path) for path in photos],
        [Image.open(path) for path in photos],
        arrays,
        [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays],
        (path for path in photos),
    ):
        assert torch.equal(fast.predict(images).probabilities, right)
    torch.testing.assert_close(fast.predict(photos[0]).probabilities, right[:1])
    same = np.stack([arrays[0]] * 70)  # more than one batch
    torch.testing.assert_close(fast.predict(same).probabilities, right[:1].expand(70, 3), atol=1e-5, rtol=1e-4)
    batch = torch.from_numpy(same).permute(0, 3, 1, 2)
    assert torch.equal(fast.predict(batch).probabilities, fast.predict(same).probabilities)


def test_dense_and_uncalibrated(model, photos, saved):
    about = cigl.runtime.describe(saved)
    assert about["classes"] == NAMES
    known = {name: about[name] for name in ("classes", "preprocessing")}
    dense = cigl.runtime.predict(cigl.load(saved, engine="dense"), photos, **known)
    torch.testing.assert_close(dense.probabilities, expected(model, photos, 2.5))
    plain = cigl.load(saved, calibrated=False).predict(photos)
    torch.testing.assert_close(plain.probabilities, expected(model, photos, 1.0), atol=1e-5, rtol=1e-4)


def test_other_processes_get_them_too(photos, saved):
    fast = cigl.load(saved)
    again = pickle.loads(pickle.dumps(fast))
    assert again.predict(photos).labels == fast.predict(photos).labels


def test_models_that_do_not_say(model, photos):
    fast = cigl.sparse_inference(model)
    with pytest.raises(CiglError, match=r"pass preprocessing=cigl.Preprocessing\(size, mean, std\)"):
        fast.predict(photos)
    assert set(fast.predict(photos, preprocessing=PREPROCESSING).labels) <= {"0", "1", "2"}
    assert fast.predict(photos, preprocessing=PREPROCESSING, classes=NAMES).labels[0] in NAMES
    with pytest.raises(CiglError, match="has 3 classes, but there are 2 names"):
        fast.predict(photos, preprocessing=PREPROCESSING, classes=["a", "b"])


def test_a_file_of_an_earlier_version():
    fast = cigl.load(OLD)
    assert (fast.classes, fast.preprocessing) == (None, None)
    with pytest.raises(CiglError, match=r"cigl\.save"):
        fast.predict(np.zeros((8, 8, 3), np.uint8))
    assert cigl.runtime.describe(OLD)["classes"] is None


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images"),
        (np.zeros((2, 8, 8, 3)), "image 1 of 2: an image has bytes"),
        (["lost.png"], "lost.png can't be read as an image: No such file"),
        ([np.zeros((8, 8, 3), np.uint8), 3], "image 2 of 2: an image is a path"),
    ],
)
def test_images_that_can_not_be_used(saved, images, message):
    with pytest.raises(CiglError, match=message):
        cigl.load(saved).predict(images)


def test_a_model_in_training_mode(model, photos):
    with pytest.raises(CiglError, match=r"model\.eval"):
        cigl.runtime.predict(model.train(), photos, preprocessing=PREPROCESSING)


def test_what_can_not_be_saved(model, tmp_path):
    for wrong in ({"classes": "abc"}, {"classes": [1, 2, 3]}, {"preprocessing": {"size": 8}}):
        with pytest.raises(CiglError, match=r"class|preprocessing"):
            cigl.save(model, tmp_path / "a.cigl", **wrong)
    assert not (tmp_path / "a.cigl").exists()


@pytest.mark.parametrize("wrong", [{"classes": ["\x1b[2J"]}, {"preprocessing": {"size": [10**9, 1]}}])
def test_files_made_to_harm_are_refused(saved, wrong):
    stored, description = container.read(saved)
    container.write(saved, stored, description | wrong)
    for read in (cigl.load, cigl.runtime.describe):
        with pytest.raises(CiglError, match="can't be loaded"):
            read(saved)
