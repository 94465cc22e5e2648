"""SIGINT and SIGTERM finish the step, save and end the process with 130 or 143."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop, and has saved itself if it had begun."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Requests:
    """Which signal has come, if any."""

    number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    def check(self) -> None:
        """To be called where stopping loses nothing."""
        if self.number is not None:
            raise Stopped(self.number)


@contextmanager
def listening() -> Iterator[Requests]:
    """Signals are noted, not acted on, until the block ends. A block within another notes them for both."""
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, Requests):
        yield outer
        return
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield requests
        return
    old = {number: signal.signal(number, requests) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
