"""Ctrl-C while libraries are imported, when a KeyboardInterrupt could come out as any other error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGE = "interrupted."


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process with one line and code 130: for a block that has nothing to undo or to save."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    old = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _end(*_: object) -> None:
    clear = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""  # a progress line, and the cursor that it hides
    os.write(2, f"{clear}{MESSAGE}\n".encode())
    os._exit(130)
