"""What is being done now, for whoever watches: ``with phase("evaluating"): ...``. By default nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[tuple[str, ...]], None]  # called at each change: the phase, and those within it

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_current: ContextVar[tuple[str, ...]] = ContextVar("current", default=())


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Around a part of the work that may take more than a moment.

    >>> with watching(print), phase("pilot run"), phase("evaluating"):
    ...     pass
    ('pilot run',)
    ('pilot run', 'evaluating')
    ('pilot run',)
    ()
    """
    before = _current.get()
    _tell((*before, name))
    try:
        yield
    finally:
        _tell(before)


def announce(name: str) -> None:
    """Shown until the next phase begins or ends."""
    if (watch := _watch.get()) is not None:
        watch((*_current.get(), name))


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """``watch`` is called when a phase begins or ends in the block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def _tell(now: tuple[str, ...]) -> None:
    _current.set(now)
    if (watch := _watch.get()) is not None:
        watch(now)
