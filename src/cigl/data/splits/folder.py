"""Image folders: which files belong to which class. ImageNet's usual layout, Tiny ImageNet's official one, and yours.

PATH/train/<class>/**/*.jpg     PATH/val/<class>/**/*.jpg   (or test/; or val/ with a val_annotations.txt)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cigl.common.errors import CiglError
from cigl.common.images import ENDINGS, image_files
from cigl.common.text import listed, printable

_ANNOTATIONS = "val_annotations.txt"


class Listing(NamedTuple):
    """Files of a split, relative to the root, as one array of bytes: a million paths in 50 MB, shared by workers."""

    paths: npt.NDArray[np.bytes_]
    labels: npt.NDArray[np.int64]


class Tree(NamedTuple):
    """A dataset in folders. ``judged_by`` is the folder of the test images: val or test."""

    root: Path
    classes: list[str]
    train: Listing
    test: Listing
    judged_by: str

    def path(self, listing: Listing, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(listing.paths[index]))

    def problems(self) -> list[str]:
        """A sentence for each of the two folders that has no images of some class."""
        found = []
        for folder, listing, then in (
            ("train", self.train, "the network can't learn them"),
            (self.judged_by, self.test, "nothing is measured on them"),
        ):
            present = set(np.unique(listing.labels).tolist())
            lost = [name for number, name in enumerate(self.classes) if number not in present]
            if lost:
                what = "the class" if len(lost) == 1 else f"{len(lost)} of {len(self.classes)} classes:"
                then = then.replace("them", "it") if len(lost) == 1 else then
                found.append(
                    f"{self.root / folder} has no images of {what} {listed(map(printable, lost))}, so {then}: add "
                    "some, or remove the class from both folders."
                )
        return found


def scan(root: Path) -> Tree:
    """List the images; classes are numbered in the order of their folders' names."""
    train = root / "train"
    if not train.is_dir():
        raise CiglError(f"{root} has no folder train/: it needs train/CLASS/*.jpg and val/CLASS/*.jpg.")
    classes = _folders(train)
    if len(classes) < 2:
        raise CiglError(f"{train} must hold a folder for each class, two at least: it has {len(classes)}.")
    number = {name: k for k, name in enumerate(classes)}
    for test in (root / "val", root / "test"):
        if (test / _ANNOTATIONS).is_file():
            return Tree(root, classes, _by_folder(root, train, number), _by_annotation(root, test, number), test.name)
        if test.is_dir() and _folders(test):
            strange = sorted(set(_folders(test)) - set(classes))
            if strange:
                raise CiglError(
                    f"{test} has the class{'es' * (len(strange) > 1)} {listed(map(printable, strange))}, which {train} "
                    "has not: rename or remove what is there by mistake."
                )
            return Tree(root, classes, _by_folder(root, train, number), _by_folder(root, test, number), test.name)
    raise CiglError(f"{root} has no folder val/ or test/ with one folder for each class, as train/ has.")


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _listing(where: Path, paths: list[str], labels: list[int]) -> Listing:
    if not paths:
        raise CiglError(f"{where} holds no images ({', '.join(ENDINGS)}).")
    return Listing(np.array([os.fsencode(path) for path in paths]), np.array(labels, dtype=np.int64))


def _by_folder(root: Path, split: Path, number: dict[str, int]) -> Listing:
    paths: list[str] = []
    labels: list[int] = []
    for name in _folders(split):
        found = [os.path.relpath(path, root) for path in image_files(split / name)]
        paths += sorted(found)
        labels += [number[name]] * len(found)
    return _listing(split, paths, labels)


def _by_annotation(root: Path, split: Path, number: dict[str, int]) -> Listing:
    """Tiny ImageNet's validation set: all images in one folder, and lines of file, class and box."""
    paths, labels = [], []
    for line in (split / _ANNOTATIONS).read_text("utf-8").splitlines():
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in number or Path(file).name != file:
            raise CiglError(f"{split / _ANNOTATIONS} has a line that is not file and class: {line!r}.")
        paths.append(os.path.relpath(split / "images" / file, root))
        labels.append(number[name])
    return _listing(split, paths, labels)
