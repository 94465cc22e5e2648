"""Files that are there whole, or as they were before: a kill or a full disk at any moment leaves no half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cigl.common.errors import CiglError
from cigl.common.locks import lock, unlock

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
        _flush(temporary, os.O_RDWR)  # Windows flushes only what may be written to
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere folders can't be opened
        _flush(target.parent, os.O_RDONLY | os.O_DIRECTORY)


def write(path: Path, *content: bytes | memoryview) -> None:
    """The whole file, its parts one after the other, or a CiglError and what was there before."""
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            file.writelines(content)
    except OSError as error:
        raise CiglError(
            f"{path} can't be written ({error.strerror or error}); what was there before is intact."
        ) from error


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends.

    Where another has it: wait for it, or raise BlockingIOError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise CiglError(f"{path.parent} can't be written to: {error.strerror or error}.") from error
    with file:
        lock(file, wait)
        try:
            yield
        finally:
            unlock(file)


def is_locked(path: Path) -> bool:
    """Whether a process has the lock now."""
    try:
        with path.open() as file:
            lock(file, wait=False, shared=True)
            unlock(file)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _flush(path: Path, mode: int) -> None:
    """To the disk itself: a file's content, or a folder's list of names."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
