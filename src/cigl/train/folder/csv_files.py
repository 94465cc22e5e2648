"""Rows of numbers for spreadsheets: appended one at a time, and cut back to what a checkpoint knows of."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from cigl.common.errors import CiglError
from cigl.common.files import write


@contextmanager
def appending(path: Path) -> Iterator[TextIO]:
    """The end of a file, or a CiglError."""
    try:
        with path.open("a", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise CiglError(f"{path} can't be written: {error.strerror}.") from error


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more row, written at once; the first one brings the header."""
    with appending(path) as file:
        file.write(_text([row], list(row), header=file.tell() == 0))


def read(path: Path) -> list[dict[str, str]]:
    """All whole rows (a kill may have torn the last one)."""
    text = path.read_text("utf-8") if path.is_file() else ""
    found = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    return [row for row in found if None not in row.values()]


def replace(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The whole file, or none where there are no rows."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write(path, _text(rows, columns, header=True).encode())


def _text(rows: Iterable[Mapping[str, Any]], columns: list[str], header: bool) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
