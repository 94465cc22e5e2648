"""Whether all images of a folder can be read: found out before training, not in the middle of it.

What was read once is remembered in the cache, for as long as names, sizes and times of the files stay the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.files import write
from cigl.common.images import examined
from cigl.common.progress import Tick
from cigl.common.text import printable
from cigl.data.sources import store
from cigl.data.splits.folder import Tree
from cigl.data.splits.split import WHOLE, Share, part_of

MOST = 50_000  # images that are read when a run begins; of more, `cigl data check` is the one to do it
SHOWN = 20  # problems of one kind
_AT_ONCE = 256


@dataclass(frozen=True)
class Checked:
    """What was found in a folder of images. ``smallest`` and ``largest`` are width and height."""

    tree: Tree
    smallest: tuple[int, int]
    largest: tuple[int, int]
    unreadable: list[str]  # a sentence for each
    copies: list[tuple[str, str]]  # a test image and the same file among the training images
    contradictions: list[tuple[str, str]]  # the same file in two classes

    def problems(self) -> list[str]:
        """Sentences that say what to do."""
        found = self.tree.problems()
        found += _some(self.unreadable, "images can't be read")
        tested = self.tree.judged_by or "the part that is held out"
        found += _some(
            [f"{one} is the same file as {other}: a network is not tested on what it was trained on." for one, other in
             self.copies],
            f"images of {tested} are among the training images too: remove them from one of the two",
        )  # fmt: skip
        found += _some(
            [f"{one} is the same file as {other}, which is of another class: keep the right one." for one, other in
             self.contradictions],
            "images are in two classes: keep the right one of each",
        )  # fmt: skip
        return found


def check_images(tree: Tree, workers: int = 2, tick: Tick = lambda done, total: None) -> Checked:
    """Read every image to its end, and compare all files with each other."""
    split = len(tree.train.paths)
    paths = _paths(tree)
    labels = np.concatenate([tree.train.labels, tree.test.labels])
    unreadable: list[str] = []
    sizes: list[tuple[int, int]] = []
    seen: dict[bytes, int] = {}
    copies, contradictions = [], []
    for number, found in enumerate(_read(paths, workers, tick)):
        if isinstance(found, str):
            unreadable.append(f"{found.removesuffix('.')}: repair or remove the file.")
            continue
        size, digest = found
        sizes.append(size)
        first = seen.setdefault(digest, number)
        pair = printable(paths[number]), printable(paths[first])
        if labels[first] != labels[number]:
            contradictions.append(pair)
        elif first < split <= number:
            copies.append(pair)
    if not unreadable:
        _remember(tree)
    area = sorted(sizes or [(0, 0)], key=lambda size: size[0] * size[1])
    return Checked(tree, area[0], area[-1], unreadable, copies, contradictions)


def require_readable(tree: Tree, workers: int = 2, share: Share = WHOLE) -> None:
    """Raise an error if an image can't be read. Of several processes each looks at its share."""
    if _is_remembered(tree):
        return
    paths = _paths(tree)
    how = f"`cigl data check {tree.root}`"
    if len(paths) > MOST:
        warnings.warn(
            f"{tree.root} has {len(paths):,} images, too many to read them all before training: {how} does it once.",
            CiglWarning,
            stacklevel=2,
        )
        return
    bad = [each for each in _read(paths[part_of(len(paths), share)], workers) if isinstance(each, str)]
    if bad:
        raise CiglError(
            f"{len(bad)} of {len(paths):,} images can't be read: repair or remove what {how} names. The first: {bad[0]}"
        )
    if share == WHOLE:
        _remember(tree)


def _paths(tree: Tree) -> list[str]:
    return [tree.path(part, k) for part in (tree.train, tree.test) for k in range(len(part.paths))]


def _read(
    paths: Sequence[str], workers: int, tick: Tick = lambda done, total: None
) -> Iterator[tuple[tuple[int, int], bytes] | str]:
    """What ``examined`` finds, or the reason why it can't, in order; Pillow decodes several images at once."""

    def one(path: str) -> tuple[tuple[int, int], bytes] | str:
        try:
            return examined(path)
        except CiglError as error:
            return printable(str(error))

    with ThreadPoolExecutor(max(1, workers)) as threads:
        for start in range(0, len(paths), _AT_ONCE):
            part = paths[start : start + _AT_ONCE]
            yield from threads.map(one, part)
            tick(start + len(part), len(paths))


def _some(sentences: list[str], what: str) -> list[str]:
    if len(sentences) <= SHOWN:
        return sentences
    return [*sentences[:SHOWN], f"{len(sentences) - SHOWN} more {what}."]


# What was checked before


def _fingerprint(tree: Tree) -> str:
    """Of all names, sizes and times; a file that is gone has neither."""
    digest = hashlib.blake2b(digest_size=16)
    for path in _paths(tree):
        with suppress(OSError):
            about = os.stat(path)
            digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
            continue
        digest.update(f"{path}\0gone\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _record(tree: Tree) -> Path:
    place = os.fsencode(tree.root.resolve())
    return store.root() / "checked" / f"{hashlib.blake2b(place, digest_size=16).hexdigest()}.json"


def _is_remembered(tree: Tree) -> bool:
    try:
        return bool(json.loads(_record(tree).read_bytes())["fingerprint"] == _fingerprint(tree))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remember(tree: Tree) -> None:
    content = {"folder": printable(str(tree.root.resolve())), "fingerprint": _fingerprint(tree)}
    with suppress(OSError, CiglError):  # nowhere to keep it: they are read again next time
        _record(tree).parent.mkdir(parents=True, exist_ok=True)
        write(_record(tree), (json.dumps(content) + "\n").encode())
