"""SIGINT and SIGTERM finish the step, save and end the process with 130 or 143."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cigl.common.phases import announce

AGAIN = 1.0  # seconds: a signal to a group of processes may reach one of them twice


class Stopped(Exception):
    """The run was asked to stop, and has saved itself if it had begun."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Requests:
    """Which signal has come, if any. A second Ctrl-C does not wait for the step to end."""

    number: int | None = None
    _since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self._since = time.monotonic()
            announce("stopping after this step (Ctrl-C again stops at once)")
        elif number == signal.SIGINT and time.monotonic() - self._since > AGAIN:
            raise KeyboardInterrupt
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
