"""Image folders: which files belong to which class. ImageNet's usual layout, Tiny ImageNet's official one, and yours.

PATH/train/<class>/**/*.jpg     PATH/val/<class>/**/*.jpg   (or test/; or val/ with a val_annotations.txt)
PATH/<class>/**/*.jpg           a share of each class is held out to judge by
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
from cigl.data.splits.draw import stratified

VAL_SPLIT = 0.2
_ANNOTATIONS = "val_annotations.txt"


class Listing(NamedTuple):
    """Files of a split, relative to the root, as one array of bytes: a million paths in 50 MB, shared by workers."""

    paths: npt.NDArray[np.bytes_]
    labels: npt.NDArray[np.int64]


class Tree(NamedTuple):
    """A dataset in folders. ``judged_by`` is the folder of the test images: val or test; "" where they are drawn."""

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
            ("train" if self.judged_by else "", self.train, "the network can't learn them"),
            (self.judged_by, self.test, "nothing is measured on them"),
        ):
            present = set(np.unique(listing.labels).tolist())
            lost = [name for number, name in enumerate(self.classes) if number not in present]
            if lost:
                what = "the class" if len(lost) == 1 else f"{len(lost)} of {len(self.classes)} classes:"
                then = then.replace("them", "it") if len(lost) == 1 else then
                found.append(
                    f"{self.root / folder} has no images of {what} {listed(map(printable, lost))}, so {then}: add "
                    "some, or remove the class" + (" from both folders." if self.judged_by else ".")
                )
        return found


def scan(root: Path, val_split: float = VAL_SPLIT, seed: int = 0) -> Tree:
    """List the images; classes are numbered in the order of their folders' names.

    ``val_split`` is the share of each class to be held out where there is no folder for it, drawn by ``seed``.
    """
    train = root / "train"
    if not train.is_dir():
        return _divided(root, val_split, seed)
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
    raise CiglError(
        f"{root} has no folder val/ or test/ with one folder for each class, as train/ has: to hold out a part of the "
        f"images in train/, give {train}."
    )


def _divided(root: Path, val_split: float, seed: int) -> Tree:
    """One folder for each class, from which a share is held out."""
    classes = [name for name in _folders(root) if image_files(root / name)]
    if len(classes) < 2 or {"val", "test"} & set(classes):
        inside = [root / name for name in _folders(root) if len(_folders(root / name)) > 1]
        meant = (
            f"did you mean {inside[0]}?"
            if len(inside) == 1
            else (
                "it needs a folder of images for each class, CLASS/*.jpg, two at least; or train/CLASS/*.jpg and "
                "val/CLASS/*.jpg."
            )
        )
        raise CiglError(f"{root} has no folder train/, and no folders of images that could be classes: {meant}")
    paths, labels = _by_folder(root, root, {name: k for k, name in enumerate(classes)})
    total = round(val_split * len(paths))
    if not 0 < total < len(paths):
        raise CiglError(
            f"{root} has {len(paths)} images, of which a share of {val_split:g} leaves none to learn from or none to "
            "judge by: change val_split, or add images.",
            arguments=("val_split",),
        )
    held = stratified(labels, total, seed, "val split")
    return Tree(root, classes, Listing(paths[~held], labels[~held]), Listing(paths[held], labels[held]), "")


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
    for name in number:
        found = [os.path.relpath(path, root) for path in image_files(split / name)]
        paths += found
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
