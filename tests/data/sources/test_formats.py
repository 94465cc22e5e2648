"""Readers on small files in the official formats."""

import gzip
import json

import numpy as np
import pytest
from PIL import Image
from samples import cifar_bytes, idx_bytes, jpeg, labels, pixels, tiny_imagenet_files, write_files, write_idx

from cigl.common.errors import CiglError
from cigl.data.sources.formats import cifar_folder, cifar_records, cifar_sheets, idx, idx_folder, tiny_imagenet_folder


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_idx(tmp_path, pack):
    array = pixels(5, 4, 3)
    (tmp_path / "x").write_bytes(pack(idx_bytes(array)))
    assert np.array_equal(idx(tmp_path / "x"), array)


def test_idx_by_hand(tmp_path):
    (tmp_path / "x").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]))
    assert idx(tmp_path / "x").tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"\0\0\x0d\1\0\0\0\0",  # floats
        idx_bytes(pixels(5, 4))[:-1],
        idx_bytes(pixels(5, 4)) + b"x",
        b"\0\0\x08\x03\0\0\0\1",  # sizes are missing
        b"\0\0\x08\x03" + b"\xff" * 12,  # sizes that overflow
        gzip.compress(idx_bytes(pixels(50, 40)))[:-30],
        b"\x1f\x8bnoise",
    ],
)
def test_damaged_idx(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CiglError, match=r"x is (damaged|not an IDX)"):
        idx(tmp_path / "x")


@pytest.mark.parametrize("packed", [True, False])
def test_idx_folder(tmp_path, packed):
    write_idx(tmp_path / "package" / "data", packed)
    arrays = idx_folder(tmp_path)
    assert np.array_equal(arrays.train_images[:, 0], pixels(20, 28, 28, seed=20))
    assert arrays.test_images.shape == (10, 1, 28, 28)
    assert arrays.test_labels.tolist() == list(range(10))


def test_a_missing_file(tmp_path):
    with pytest.raises(CiglError, match="train-images-idx3-ubyte is missing"):
        idx_folder(tmp_path)


def test_cifar_record_by_hand(tmp_path):
    """CIFAR-100: coarse label, fine label, 1,024 red, green and blue bytes, row by row."""
    record = bytes([3, 77]) + bytes([10] * 1024) + bytes([20] * 1024) + bytes([30] * 1023) + b"\x63"
    (tmp_path / "x").write_bytes(record * 2)
    images, found = cifar_records(tmp_path / "x", 2)
    assert found.tolist() == [77, 77]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, :, 0, 0].tolist() == [10, 20, 30]
    assert images[1, 2, 31, 31] == 99


@pytest.mark.parametrize("cut", [1, 3072])
def test_damaged_cifar(tmp_path, cut):
    (tmp_path / "x").write_bytes(cifar_bytes(pixels(2, 3, 32, 32), labels(2, 2))[:-cut])
    with pytest.raises(CiglError, match="whole number"):
        cifar_records(tmp_path / "x", 1)


def test_cifar10_batches_in_order(tmp_path):
    names = [f"data_batch_{n}.bin" for n in range(1, 6)]
    for n, name in enumerate([*names, "test_batch.bin"]):
        images = np.full((2, 3, 32, 32), n, np.uint8)
        write_files(tmp_path, {f"cifar-10-batches-bin/{name}": cifar_bytes(images, [n, n])})
    arrays = cifar_folder(tmp_path, tuple(names), "test_batch.bin", 1)
    assert arrays.train_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] == arrays.train_images[:, 0, 0, 0].tolist()
    assert arrays.test_labels.tolist() == [5, 5]


def write_sheets(folder, truth):
    folder.mkdir()
    sheets = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    for n, name in enumerate(sheets):
        rows = truth[2 * n : 2 * n + 2].transpose(0, 2, 3, 1).reshape(2, 1024, 3)
        Image.fromarray(rows).save(folder / f"{name}.png")
    for part, count in (("train", 10), ("test", 2)):
        (folder / f"{part}_lables.json").write_text(json.dumps(list(range(count))))


def test_cifar_sheets(tmp_path):
    truth = pixels(12, 3, 32, 32)
    write_sheets(tmp_path / "package", truth)
    arrays = cifar_sheets(tmp_path)
    assert np.array_equal(arrays.train_images, truth[:10])
    assert np.array_equal(arrays.test_images, truth[10:])
    assert arrays.train_labels.tolist() == list(range(10))


@pytest.mark.parametrize("wrong", ["[1, 300]", "[[1]]", "nonsense", '{"a": 1}', '["a"]', "[-1]"])
def test_wrong_labels(tmp_path, wrong):
    write_sheets(tmp_path / "package", pixels(12, 3, 32, 32))
    (tmp_path / "package" / "test_lables.json").write_text(wrong)
    with pytest.raises(CiglError, match="not a list of labels"):
        cifar_sheets(tmp_path)


def test_wrong_sheets(tmp_path):
    write_sheets(tmp_path / "package", pixels(12, 3, 32, 32))
    path = tmp_path / "package" / "test_batch.png"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CiglError, match="can't be read as an image"):
        cifar_sheets(tmp_path)
    Image.new("RGB", (32, 32)).save(path)
    with pytest.raises(CiglError, match=r"rows of 1,024 RGB pixels"):
        cifar_sheets(tmp_path)


def test_tiny_imagenet(tmp_path):
    arrays = tiny_imagenet_folder(write_files(tmp_path, tiny_imagenet_files()))
    assert arrays.train_images.shape == (6, 3, 64, 64)
    assert arrays.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert arrays.test_labels.tolist() == [0, 1, 2]  # from val_annotations.txt, whose files run backwards
    for images, found in (arrays[:2], arrays[2:]):
        grey = images.astype(int).mean((1, 2, 3))
        assert np.abs(grey - (60 * found.astype(int) + 30)).max() < 2


def test_tiny_imagenet_with_a_wrong_size(tmp_path):
    files = tiny_imagenet_files()
    files["tiny-imagenet-200/val/images/val_1.JPEG"] = jpeg(0, (63, 64), "L")
    with pytest.raises(CiglError, match="64 x 64"):
        tiny_imagenet_folder(write_files(tmp_path, files))
