"""Image folders in batches: the same whatever the number of worker processes."""

import numpy as np
import pytest
import torch
from PIL import Image
from samples import jpeg, tiny_imagenet_files, write_files

import cigl.data
from cigl.common.errors import CiglError, CiglWarning


@pytest.fixture
def photos(tmp_path):
    """Twelve training and four validation images of two classes, of different sizes."""
    rng = np.random.default_rng(0)
    for k in range(16):
        path = tmp_path / "photos" / ("train" if k < 12 else "val") / "ab"[k % 2] / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (48 + k, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_open(photos):
    source = cigl.data.open(f"folder:{photos}")
    assert (source.classes, source.shape) == (2, (3, 40, 40))
    assert (len(source.train), len(source.test)) == (12, 4)
    assert source.train.labels.tolist() == [0] * 6 + [1] * 6
    assert cigl.data.get(f"folder:{photos}") == photos


@pytest.mark.parametrize("augment", [True, False])
def test_workers_and_start_change_nothing(photos, augment):
    split = cigl.data.open(f"folder:{photos}").train
    options = {"seed": 3, "epoch": 1, "shuffle": True, "augment": augment}
    before = torch.get_rng_state()
    whole = list(split.batches(5, **options))
    assert [len(y) for _, y in whole] == [5, 5, 2]
    for start, workers in ((0, 2), (1, 1), (2, 0), (3, 2)):
        torch.manual_seed(start)
        tail = list(split.batches(5, start=start, workers=workers, **options))
        assert len(tail) == 3 - start
        for (x, y), (x2, y2) in zip(whole[start:], tail, strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)
    torch.set_rng_state(before)
    list(split.batches(5, workers=1, **options))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_has_its_own_crops(photos):
    split = cigl.data.open(f"folder:{photos}").train
    first, second = (next(split.batches(12, epoch=epoch, augment=True))[0] for epoch in (0, 1))
    assert not torch.equal(first, second)
    test = cigl.data.open(f"folder:{photos}").test
    assert torch.equal(next(test.batches(4, augment=True))[0], next(test.batches(4))[0])


def test_values(photos):
    split = cigl.data.open(f"folder:{photos}").test
    x, y = next(split.batches(4))
    image = Image.open(photos / "val" / "a" / "12.png").convert("RGB")  # 40 wide, 60 high: its middle, not resized
    expected = np.asarray(image.crop((0, 10, 40, 50))).transpose(2, 0, 1).copy()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(x[0], (torch.from_numpy(expected) / 255 - mean) / std, atol=1e-5)
    assert (x.dtype, y.tolist()) == (torch.float32, [0, 0, 1, 1])


def test_divide_and_take(photos):
    split = cigl.data.open(f"folder:{photos}").train
    train, held = split.divide(1 / 3, seed=0)
    assert sorted(train.labels.tolist()) == [0] * 4 + [1] * 4
    assert sorted(held.labels.tolist()) == [0] * 2 + [1] * 2
    x = torch.cat([next(part.batches(12))[0] for part in (train, held)])
    assert len({tuple(row) for row in x.flatten(1)[:, :50].tolist()}) == 12
    assert torch.equal(next(split.take([7, 2]).batches(2))[0], next(split.batches(12))[0][[7, 2]])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_or_lost_image_is_named(photos, workers):
    split = cigl.data.open(f"folder:{photos}").train
    bad = photos / "train" / "b" / "05.png"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(CiglError, match=r"05\.png can't be read as an image") as caught:
        list(split.batches(5, workers=workers))
    assert "\n" not in str(caught.value)
    bad.unlink()
    with pytest.raises(CiglError, match=r"05\.png can't be read"):
        list(split.batches(5, workers=workers))


def test_odd_images_become_rgb(tmp_path):
    files = {
        "train/a/1.png": jpeg(9, (70, 70), "L", "PNG"),
        "train/b/2.png": jpeg((1, 2, 3, 4), (80, 66), "RGBA", "PNG"),
    }
    files |= {"train/a/3.jpg": jpeg((1, 2, 3, 4), (90, 70), "CMYK"), "train/a/4.png": jpeg(3, (300, 7), "P", "PNG")}
    source = cigl.data.open(f"folder:{write_files(tmp_path, files | {'val/a/1.jpg': jpeg(1, mode='L')})}")
    assert next(source.train.batches(4, augment=True))[0].shape == (4, 3, 70, 70)
    assert next(source.train.batches(4))[0].shape == (4, 3, 70, 70)


def test_imagenet(tmp_path):
    with pytest.raises(CiglError, match=r"https://image-net.org.*or name its folder"):
        cigl.data.open("imagenet")
    with pytest.raises(CiglError, match="image-net"):
        cigl.data.get("imagenet")
    files = {f"{part}/n0{k}/x_{k}.JPEG": jpeg((k, k, k), (300, 250)) for part in ("train", "val") for k in range(2)}
    write_files(tmp_path / "cache" / "imagenet", files)
    assert cigl.data.get("imagenet") == tmp_path / "cache" / "imagenet"
    with pytest.warns(CiglWarning, match="2 classes"):
        source = cigl.data.open("imagenet")
    assert (source.shape, source.classes) == ((3, 224, 224), 2)
    assert next(source.train.batches(2, augment=True, workers=1))[0].shape == (2, 3, 224, 224)


def test_tiny_imagenet_folder_streams_too(tmp_path):
    place = write_files(tmp_path, tiny_imagenet_files()) / "tiny-imagenet-200"
    source = cigl.data.open(f"folder:{place}")
    assert (source.shape, source.classes, len(source.test)) == ((3, 64, 64), 3, 3)
    assert next(source.test.batches(3))[1].tolist() == [0, 1, 2]


def test_more_workers_than_cores_are_no_warning(photos, monkeypatch, recwarn):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    split = cigl.data.open(f"folder:{photos}").train
    recwarn.clear()
    assert next(split.batches(4, workers=2))[0].shape[0] == 4
    assert not recwarn.list


def test_no_folder(tmp_path):
    with pytest.raises(CiglError, match=r"there is no folder .*: give folder:PATH with PATH/CLASS/"):
        cigl.data.open(f"folder:{tmp_path / 'nothing'}")


def test_the_shares_of_two_processes_are_the_batches_of_one(photos):
    split = cigl.data.open(f"folder:{photos}").train
    options = {"seed": 3, "epoch": 1, "shuffle": True, "augment": True, "drop_last": True}
    first, second = (split.batches(4, share=(k, 2), **options) for k in (0, 1))
    for (x, y), one, other in zip(split.batches(4, **options), first, second, strict=True):
        assert torch.equal(torch.cat([one[0], other[0]]), x)
        assert torch.equal(torch.cat([one[1], other[1]]), y)


def test_the_size_is_that_of_half_of_the_images_or_the_one_asked_for(photos):
    Image.new("RGB", (8, 300)).save(photos / "train" / "a" / "00.png")  # the first one is odd
    assert cigl.data.open(f"folder:{photos}").shape == (3, 40, 40)
    large = cigl.data.open(f"folder:{photos}", image_size=96)
    assert (large.shape, large.preprocessing.crop) == ((3, 96, 96), 7 / 8)
    assert next(large.train.batches(3, augment=True))[0].shape == (3, 3, 96, 96)
    with pytest.raises(CiglError, match=r"image_size is 32, but mnist1d is used as it is"):
        cigl.data.open("mnist1d", image_size=32)


def test_small_images_are_shifted_and_mirrored(photos):
    split = cigl.data.open(f"folder:{photos}", image_size=16).train
    plain, shifted = (next(split.batches(1, augment=augment))[0][0] for augment in (False, True))
    padded = torch.nn.functional.pad(plain, (2, 2, 2, 2), value=float("nan"))
    views = [padded[:, dy : dy + 16, dx : dx + 16] for dy in range(5) for dx in range(5)]

    def is_part(view):
        inside = ~view.isnan()
        return bool(torch.equal(view[inside], shifted[inside]))

    assert any(is_part(view) or is_part(view.flip(-1)) for view in views)


def test_a_class_without_test_images_is_named(photos):
    (photos / "train" / "c").mkdir()
    (photos / "train" / "c" / "1.png").write_bytes(jpeg(1, (40, 40), "L", "PNG"))
    with pytest.warns(CiglWarning, match=r"val has no images of the class 'c', so nothing is measured on it: add some"):
        cigl.data.open(f"folder:{photos}")
