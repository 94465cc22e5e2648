"""MNIST-1D (Greydanus & Kobak 2024): made here from its recipe, nothing is downloaded."""

from __future__ import annotations

import random
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cigl.common.extras import from_extra
from cigl.common.files import whole_file
from cigl.data.sources.memory import MemorySplit, Vectors
from cigl.data.splits.split import Source

TRAIN, TEST = 4_000, 10_000
_NAMES = ("x", "y", "x_test", "y_test")
_SHAPES = [(TRAIN, 40), (TRAIN,), (TEST, 40), (TEST,)]


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """The package seeds the generators of Python, numpy and torch; the caller's are restored."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@lru_cache(maxsize=2)
def mnist1d(seed: int, folder: Path) -> Source:
    """4,000 training and 10,000 test signals of 40 numbers, mean 0 and variance 1 by the recipe, in ten classes.

    Seed 0 is the recipe's own seed, 42; seed s is 42 + s. Making them takes seconds, so they are kept on disk for
    the next process; a file that is damaged (its archive has checksums) is made again.
    """
    kept = folder / f"mnist1d-{seed}.npz"
    try:
        with np.load(kept) as file:
            arrays = {name: file[name] for name in _NAMES}
        if [arrays[name].shape for name in _NAMES] != _SHAPES:
            raise ValueError("something else")
    except (OSError, KeyError, IndexError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = _make(seed)
        with suppress(OSError):  # nowhere to keep them: they are made again next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(kept) as path, path.open("wb") as out:
                np.savez(out, **arrays)  # type: ignore[arg-type]
    train, test = (
        MemorySplit(Vectors(torch.from_numpy(arrays["x" + end])), torch.from_numpy(arrays["y" + end]))
        for end in ("", "_test")
    )
    return Source("mnist1d", 10, (40,), train, test)


def _make(seed: int) -> dict[str, npt.NDArray[Any]]:
    with from_extra("data", "the signals of mnist1d"):
        from mnist1d.data import get_dataset_args, make_dataset  # type: ignore[import-untyped]
    settings = get_dataset_args()
    settings.num_samples, settings.train_split = TRAIN + TEST, TRAIN / (TRAIN + TEST)
    settings.seed = (42 + seed) % 2**32
    with _global_generators_kept():
        made = make_dataset(settings)
    return {name: made[name].astype(np.float32 if name[0] == "x" else np.int64) for name in _NAMES}
