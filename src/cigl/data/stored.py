"""Which of the datasets are on this machine, and how large they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from cigl.data.catalogue import FETCHED, GENERATED, OWN, STREAMED
from cigl.data.sources import store

State = Literal["generated", "here", "not downloaded", "not here", "yours"]


class Stored(NamedTuple):
    """``bytes`` on the disk, where that is known; folders of images that are read as needed are not counted."""

    state: State
    path: Path | None = None
    bytes: int | None = None


def stored(folder: str | os.PathLike[str] | None = None) -> dict[str, Stored]:
    """Every dataset that has a name.

    >>> stored()["mnist1d"].state
    'generated'
    """
    root = store.root(folder)
    found = {name: Stored("generated") for name in GENERATED}
    for name in FETCHED:
        place = root / name
        is_here = store.exists(place)
        found[name] = Stored("here", place, _size(place)) if is_here else Stored("not downloaded")
    for name in STREAMED:
        place = root / name
        found[name] = Stored("here", place) if place.is_dir() else Stored("not here")
    return found | dict.fromkeys(OWN, Stored("yours"))


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir() if each.is_file())
