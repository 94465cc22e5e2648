"""A lock on an open file as the platform has it: flock, or msvcrt on Windows. It ends when the process does."""

from __future__ import annotations

import importlib
import time
from typing import IO, Any

from cigl.common.errors import CiglError


def _if_there(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


_fcntl, _msvcrt = _if_there("fcntl"), _if_there("msvcrt")


def lock(file: IO[str], wait: bool, shared: bool = False) -> None:
    """Lock the file, or raise BlockingIOError if another has it and ``wait`` is false."""
    if _fcntl is not None:
        _fcntl.flock(file, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | (0 if wait else _fcntl.LOCK_NB))
    elif _msvcrt is not None:  # it knows no shared locks, and waits for 10 seconds at most
        while not _lock_on_windows(file):
            if not wait:
                raise BlockingIOError
            time.sleep(0.1)
    else:
        raise CiglError(
            "files can't be locked, because this Python has neither fcntl nor msvcrt: use a standard build of Python."
        )


def unlock(file: IO[str]) -> None:
    """Before the file is closed, which is all that flock needs: a forked child must not end its parent's lock."""
    if _fcntl is None and _msvcrt is not None:
        _msvcrt.locking(file.fileno(), _msvcrt.LK_UNLCK, 1)


def _lock_on_windows(file: IO[str]) -> bool:
    try:
        _msvcrt.locking(file.fileno(), _msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
