"""What a run's numbers depend on besides its configuration: recorded as it starts, compared as it resumes."""

from __future__ import annotations

import os
import platform
import textwrap
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from cigl import __version__
from cigl.common.errors import CiglError, CiglWarning
from cigl.common.text import count, joined
from cigl.runtime.program import library
from cigl.train.folder.run_folder import RunFolder
from cigl.train.ranks.group import ONE, Ranks
from cigl.train.trainer import Splits, Trainer

VERSIONS, DATA = "versions.json", "data.json"


def versions(ranks: Ranks = ONE) -> dict[str, str]:
    """What a number may depend on besides the configuration."""
    several = {"ranks": str(ranks.size)} if ranks.size > 1 else {}  # not there: one, as in version 0.1.0
    return several | {
        "cigl": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "kernels": library.isa() if library.available() else "none",
        "threads": str(torch.get_num_threads()),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "").lower() or "default",
    }


def record(folder: RunFolder, trainer: Trainer) -> None:
    folder.write_json(VERSIONS, versions(trainer.ranks))
    folder.write_json(DATA, trainer.splits.about())


def started_on(folder: RunFolder, ranks: Ranks) -> dict[str, Any]:
    """What ``versions.json`` says, or nothing where the run has not begun."""
    found: dict[str, Any] = {}
    if folder.is_started and ranks.is_main:
        with suppress(CiglError):  # a run whose file was lost still resumes
            found = folder.read_json(VERSIONS)
    return dict(ranks.from_main(found))


def report_differences(before: dict[str, Any], ranks: Ranks) -> None:
    if text := difference(before, versions(ranks)):
        warnings.warn(text, CiglWarning, stacklevel=2)


# What the last bits of a run depend on, and how each is named.
_NAMES = {
    "threads": "{} thread{}",
    "cigl": "cigl {}",
    "torch": "torch {}",
    "numpy": "numpy {}",
    "machine": "a machine of type {}",
    "cpu": "CPU instructions {}",
    "kernels": "sparse kernels for {}",
}


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """One sentence on what is not as it was when the run was started, or None.

    >>> text = difference({"torch": "2.6.0", "threads": "1"}, {"torch": "2.6.0", "threads": "2"})
    >>> text.partition(":")[0]
    'this run was started with 1 thread and is resumed with 2 threads'
    """
    changed = [name for name in _NAMES if name in before and name in now and str(before[name]) != str(now[name])]
    if not changed:
        return None
    was, are = (joined([_named(name, versions[name]) for name in changed]) for versions in (before, now))
    return (
        f"this run was started with {was} and is resumed with {are}: it continues, but its numbers will not be bit for "
        "bit those of an uninterrupted run."
    )


def _named(name: str, value: Any) -> str:
    return _NAMES[name].format(value, "" if str(value) == "1" else "s")


def refuse_other_data(folder: RunFolder, splits: Splits) -> None:
    """A folder of images may have changed since; earlier runs have no such file."""
    if not (folder.path / DATA).is_file():
        return
    before, now = folder.read_json(DATA), splits.about()
    for name, value in now.items():
        if before.get(name) != value:
            raise CiglError(
                f"{splits.source.name} has changed since the run began ({name}: {_short(before.get(name))}, now "
                f"{_short(value)}): put it back as it was, or train in a new folder."
            )


def _short(value: Any) -> str:
    return textwrap.shorten(str(value), 100, placeholder="...")


def report_other_ranks(before: int, now: int) -> None:
    if before != now:
        message = (
            f"this run was saved with {count(before, 'rank')} and is resumed with {now}: the batches are the "
            "same, but the last bits of its numbers are not, and batch norm sees other parts of a batch."
        )
        warnings.warn(message, CiglWarning, stacklevel=2)
