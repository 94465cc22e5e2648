"""Files that are there whole, or as they were before: a kill or a full disk at any moment leaves no half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cigl.errors import CiglError

LEFTOVERS = ".*.tmp*"  # what a killed process may leave beside a file


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, with its suffix, to write to; it replaces ``path`` when all went well.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with whole_file(folder / "a.txt") as file:
    ...     _ = file.write_text("hello")
    >>> [each.name for each in folder.iterdir()]
    ['a.txt']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(target.parent)


def write(path: Path, content: bytes) -> None:
    """The whole file at once, or a CiglError and what was there before."""
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise CiglError(
            f"{path} can't be written ({error.strerror or error}); what was there before is intact."
        ) from error


def _flush(path: Path) -> None:
    """To the disk itself: a file's content, or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
