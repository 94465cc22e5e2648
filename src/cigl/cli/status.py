"""The line of a terminal that says what a command is doing, where it has no progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cigl.phases import watching


@contextmanager
def status_line(quiet: bool) -> Iterator[None]:
    """Shows the current phase and how long it has taken, until the block ends or another display takes over."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    from cigl.train.progress import Display

    display = Display(idle="")
    with (
        Live(display, console=Console(stderr=True), transient=True, refresh_per_second=10, redirect_stdout=False),
        watching(display.enter),
    ):
        yield
