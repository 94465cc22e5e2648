"""Progress over images, on standard error where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(total: int, quiet: bool, what: str = "images") -> Iterator[Callable[[int], None]]:
    """Yields a function that is called with how many are done since its last call."""
    if quiet or not sys.stderr.isatty():
        yield lambda number: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        task = shown.add_task(what, total=total)
        yield lambda number: shown.advance(task, number)
