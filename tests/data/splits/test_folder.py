"""Which file belongs to which class."""

import os

import pytest
from samples import jpeg, tiny_imagenet_files, write_files

from cigl.common.errors import CiglError
from cigl.data.splits.folder import scan

DOT = jpeg(7, (8, 8), "L")


def names(listing):
    return [os.fsdecode(path) for path in listing.paths]


def test_the_usual_layout(tmp_path):
    files = ["train/b/2.JPEG", "train/b/1.jpg", "train/a/x/deep.png", "val/b/9.jpg", "val/a/8.jpg"]
    files += ["train/a/notes.txt", "train/a/.hidden.jpg", "train/.cache/x.jpg", "train/readme.md", "train/ü/ä.jpg"]
    tree = scan(write_files(tmp_path, dict.fromkeys(files, DOT)))
    assert tree.classes == ["a", "b", "ü"]
    assert names(tree.train) == ["train/a/x/deep.png", "train/b/1.jpg", "train/b/2.JPEG", "train/ü/ä.jpg"]
    assert tree.train.labels.tolist() == [0, 1, 1, 2]
    assert names(tree.test) == ["val/a/8.jpg", "val/b/9.jpg"]
    assert tree.test.labels.tolist() == [0, 1]


def test_test_instead_of_val(tmp_path):
    tree = scan(write_files(tmp_path, dict.fromkeys(["train/a/1.png", "train/b/1.png", "test/b/2.png"], DOT)))
    assert names(tree.test) == ["test/b/2.png"]
    assert tree.test.labels.tolist() == [1]


def test_tiny_imagenet_layout(tmp_path):
    tree = scan(write_files(tmp_path, tiny_imagenet_files()) / "tiny-imagenet-200")
    assert tree.classes == ["n00", "n01", "n02"]
    assert names(tree.test) == [f"val/images/val_{k}.JPEG" for k in (3, 2, 1)]
    assert tree.test.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["val/a/1.png"], "no folder train/"),
        (["train/a/1.png"], "two at least: it has 1"),
        (["train/a/1.png", "train/b/1.png"], "no folder val/ or test/"),
        (["train/a/1.png", "train/b/1.png", "val/1.png"], "no folder val/ or test/"),
        (["train/a/1.png", "train/b/1.png", "val/c/1.png"], "has the class 'c'"),
        (["train/a/1.txt", "train/b/1.txt", "val/a/1.png"], "holds no images"),
        (["train/a/1.png", "train/b/1.png", "val/a/1.txt"], "holds no images"),
    ],
)
def test_wrong_layouts(tmp_path, files, message):
    with pytest.raises(CiglError, match=message):
        scan(write_files(tmp_path, dict.fromkeys(files, DOT)))


@pytest.mark.parametrize("line", ["val_1.JPEG", "val_1.JPEG\tn99\t0", "../../x.JPEG\tn00\t0"])
def test_wrong_annotations(tmp_path, line):
    files = tiny_imagenet_files() | {"tiny-imagenet-200/val/val_annotations.txt": line.encode()}
    with pytest.raises(CiglError, match="not file and class"):
        scan(write_files(tmp_path, files) / "tiny-imagenet-200")
