"""Reports on disk: one JSON file for people and scripts, and beside it an .npz with what is kept per sample."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cigl.calibrate.bins import Array
from cigl.calibrate.files import write_atomically
from cigl.calibrate.samples import Samples
from cigl.errors import CiglError

if TYPE_CHECKING:
    from cigl.calibrate.report import Report

FORMAT = "cigl calibration report"
VERSION = 1
_PER_SAMPLE = ("labels", "predicted", "confidence", "correct", "nll", "brier", "top5")


def arrays(report: Report) -> dict[str, Array]:
    """Everything that is kept per sample, and the bootstrap draws, by name."""
    kept = {name: getattr(report.samples, name) for name in _PER_SAMPLE}
    kept = {name: values for name, values in kept.items() if values is not None}
    return kept | {f"draws/{name}": values for name, values in report.draws.items()}


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """The samples first: a JSON file is never there without them, and it knows their hash."""
    target = Path(path)
    beside = target.with_suffix(".npz")
    if beside == target:
        raise CiglError(f"{target.name}: the per-sample file has that name; choose one that ends in .json.")
    write_atomically(beside, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays(report)))
    head = {"format": FORMAT, "version": VERSION, "samples": beside.name, "samples_sha256": _hash(beside)}
    text = json.dumps(head | report.to_dict(), indent=1, allow_nan=False)
    write_atomically(target, lambda file: file.write_text(text + "\n", encoding="utf-8"))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Samples, dict[str, Array]]:
    source = Path(path)
    try:
        plain = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CiglError(f"there is no file {source}.") from None
    except (ValueError, IsADirectoryError):
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise CiglError(f"{source} is not a calibration report: report.to_json(path) writes one.")
    if plain.get("version") != VERSION:
        raise CiglError(f"{source} has version {plain.get('version')}, this cigl reads {VERSION}: update cigl.")
    # The name inside the file is for people; what is opened is always the file beside.
    beside = source.with_suffix(".npz")
    if not beside.is_file():
        raise CiglError(f"{beside} is missing: it holds what {source.name} keeps per sample; move both files together.")
    if _hash(beside) != plain.get("samples_sha256"):
        raise CiglError(f"{beside} belongs to another report than {source.name}: write the report again.")
    try:
        with np.load(beside, allow_pickle=False) as file:
            loaded = {name: file[name] for name in file.files}
        draws = {name.removeprefix("draws/"): loaded.pop(name) for name in list(loaded) if name.startswith("draws/")}
        return plain, Samples(**({"top5": None} | loaded)), draws
    except (TypeError, ValueError, zipfile.BadZipFile):
        raise CiglError(f"{beside} does not hold the samples of a report: write the report again.") from None


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
