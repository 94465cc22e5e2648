"""The store of calibration reports.

One JSON file for people and scripts, and beside it an .npz with what is kept per sample.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.calibrate.measures.samples import Samples
from cigl.common.errors import CiglError
from cigl.common.files import whole_file

if TYPE_CHECKING:
    from cigl.calibrate.reports.classification import Report

FORMAT = "cigl calibration report"
VERSION = 1
# What reading a damaged file can raise: by JSON, by zip and numpy, and by taking apart what they return.
DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    EOFError,
    OSError,
    RecursionError,
    OverflowError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def arrays(report: Report) -> dict[str, Array]:
    """Everything that is kept per sample, and the bootstrap draws, by name."""
    kept = {name: values for name, values in vars(report.samples).items() if values is not None}
    return kept | {f"draws/{name}": values for name, values in report.draws.items()}


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """The samples first, under a name with their hash; then the JSON file that names them; then the old samples go.

    So whatever is interrupted, the JSON file names samples that are there.
    """
    target = Path(path)
    if target.suffix != ".json":
        raise CiglError(f"{target.name} does not end in .json: choose a name that does, the samples go beside it.")
    if not target.parent.is_dir():
        raise CiglError(f"there is no folder {target.parent}: make it first.")
    filled = io.BytesIO()
    np.savez_compressed(filled, allow_pickle=False, **arrays(report))
    digest = hashlib.sha256(filled.getbuffer()).hexdigest()
    beside = target.with_name(f"{target.stem}-{digest[:16]}.npz")
    head = {"format": FORMAT, "version": VERSION, "samples": beside.name, "samples_sha256": digest}
    text = json.dumps(head | report.to_dict(), indent=1, allow_nan=False)  # fails before anything is written
    with whole_file(beside) as file:
        file.write_bytes(filled.getbuffer())
    with whole_file(target) as file:
        file.write_text(text + "\n", encoding="utf-8")
    own = re.compile(re.escape(target.stem) + "-[0-9a-f]{16}[.]npz")
    for old in target.parent.iterdir():
        if own.fullmatch(old.name) and old != beside:
            old.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Samples, dict[str, Array]]:
    plain, beside = locate(path)
    loaded: dict[str, Any] = load(beside)
    draws = {name.removeprefix("draws/"): loaded.pop(name) for name in list(loaded) if name.startswith("draws/")}
    try:
        return plain, Samples(**({"top5": None} | loaded)), draws
    except DAMAGE:
        raise damaged(beside) from None


def locate(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Path]:
    """What the JSON file holds, and the file beside it that belongs to it."""
    source = Path(path)
    try:
        plain = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CiglError(f"there is no file {source}.") from None
    except DAMAGE:
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise CiglError(f"{source} is not a calibration report: report.to_json(path) writes one.")
    if plain.get("version") != VERSION:
        raise CiglError(
            f"{source} has version {plain.get('version')!r}, this cigl reads {VERSION}: read it with the "
            "cigl that wrote it, or write the report again."
        )
    # The name inside the file is for people; what is opened is always a file beside, and the right one.
    digest = str(plain.get("samples_sha256"))
    beside = source.with_name(f"{source.stem}-{digest[:16]}.npz")
    if not re.fullmatch("[0-9a-f]{64}", digest) or not beside.is_file():
        raise CiglError(
            f"{beside.name} is missing beside {source}: it holds what the report keeps per sample; move "
            "both files together."
        )
    try:
        right = hashlib.sha256(beside.read_bytes()).hexdigest() == digest
    except OSError:
        raise damaged(beside) from None
    if not right:
        raise CiglError(f"{beside} belongs to another report than {source.name}: write the report again.")
    return plain, beside


def load(beside: Path, names: Iterable[str] | None = None) -> dict[str, Array]:
    """All arrays, or those asked for: the others are not even decompressed."""
    try:
        with np.load(beside, allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except DAMAGE:
        raise damaged(beside) from None


def damaged(path: str | os.PathLike[str]) -> CiglError:
    return CiglError(f"{path} does not hold what a report holds: write the report again.")


def check(report: Report) -> None:
    """Whether the parts of a report that was read fit each other; a ValueError says no more than that."""
    n, kept = report.n, arrays(report)
    sizes = {values.shape for name, values in kept.items() if not name.startswith("draws/")}
    draws = {values.shape for values in report.draws.values()}
    right = (
        all(type(count) is int for count in (n, report.classes, report.bins))
        and all(values.dtype.kind in "biuf" for values in kept.values())
        and sizes == {(n,)}
        and len(draws) == 1
        and len(next(iter(draws))) == 1
        and report.draws.keys() == report.metrics.keys()
        and "nll" in report.metrics
        and f"ece_{report.bins}" in report.metrics
        and len(report.table) == report.bins
        and sum(row.count for row in report.table) == n
    )
    if not right:
        raise ValueError
