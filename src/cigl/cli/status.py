"""The line of a terminal that says what a command is doing, where it has no progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def status_line(quiet: bool) -> Iterator[None]:
    """Shows the current phase and how long it has taken, until the block ends."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from cigl.train.progress import Display

    with Display(idle="").on_terminal():
        yield
