"""What moves on a terminal while one waits: lines that are drawn again ten times a second, on standard error.

Nothing here needs torch, and without rich nothing is drawn.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from cigl.common.phases import watching
from cigl.common.text import duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

SMALLEST_BAR, LARGEST_BAR = 6, 40
BAR = 4  # the rank of the bar among the fields of a line
SPINNER, PLAIN_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
Tick = Callable[[int, "int | None"], None]  # how many are done, of how many if that is known


@contextmanager
def drawn(lines: Any) -> Iterator[Console | None]:
    """What rich can render, shown until the block ends; yields the console to print above it."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        yield None
        return
    done, console = threading.Event(), Console(stderr=True)

    def refresh() -> None:
        while not done.wait(0.1):
            live.refresh()

    with Live(lines, console=console, transient=True, auto_refresh=False) as live:
        # not rich's own thread, which may outlive the block and then abort a process that ends at once
        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield console
        finally:
            done.set()
            thread.join()


@contextmanager
def status_line(quiet: bool) -> Iterator[None]:
    """Shows the current phase and how long it has taken, until the block ends."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Phases().on_terminal():
        yield


@contextmanager
def counting(what: str, quiet: bool, unit: str = "", per: float = 1) -> Iterator[Tick]:
    """A bar for a number of things, or of bytes as ``unit`` of ``per`` bytes each; also in a notebook."""
    if quiet or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield lambda done, total: None
        return
    count = Count(what, unit, per)
    with drawn(count):
        yield count.update


class Phases:
    """A line with the phase that the program is in; rich asks for it from a thread of its own."""

    def __init__(self, idle: str = "") -> None:
        self._idle = idle
        self._phases: tuple[str, ...] = ()
        self._entered = time.monotonic()

    @contextmanager
    def on_terminal(self) -> Iterator[None]:
        """Shown, with the phases that are entered, until the block ends."""
        with drawn(self), watching(self.enter):
            yield

    def enter(self, phases: tuple[str, ...]) -> None:
        self._phases, self._entered = phases, time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        phase = ": ".join(self._phases) or self._idle
        if not phase:
            return
        seconds = time.monotonic() - self._entered
        passed = f"  {duration(seconds)}" if seconds >= 1 else ""
        yield Text(f"{_spinner(options)} {phase}{passed}", no_wrap=True)


class Count:
    """How many are done, of how many."""

    def __init__(self, what: str, unit: str = "", per: float = 1):
        self._what, self._unit, self._per = what, unit, per
        self._done, self._speed = 0, Speed()
        self._total: int | None = None

    def update(self, done: int, total: int | None) -> None:
        self._speed.add(done - self._done)
        self._done, self._total = done, total

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if not self._total:
            so_far = f"  {self._number(self._done)}{self._unit}" if self._done else ""
            yield Text(f"{_spinner(options)} {self._what}{so_far}", no_wrap=True)
            return
        fields = [Field(self._what, 1), Field(f"{self._number(self._done)}/{self._number(self._total)}{self._unit}", 2)]
        if pace := self._speed.per_second:
            fields.append(Field(f"{duration((self._total - self._done) / pace)} left", 3))
        yield bar_line(self._done / self._total, fields, options.max_width, options.ascii_only)

    def _number(self, count: int) -> str:
        return f"{count:,}" if self._per == 1 else f"{count / self._per:.1f}"


def _spinner(options: ConsoleOptions) -> str:
    frames = PLAIN_SPINNER if options.ascii_only else SPINNER
    return frames[int(10 * time.monotonic()) % len(frames)]


class Field(NamedTuple):
    """A part of a line; when there is no room for all, those with the largest number go first."""

    text: str
    rank: int


def bar_line(
    share: float, fields: list[Field], width: int, ascii_only: bool = False, longest: int = LARGEST_BAR
) -> Text:
    """A bar and the fields for which there is room.

    >>> fields = [Field("epoch 3/60", 2), Field("step 7/62", 5), Field("loss 1.234", 3), Field("0:12 left", 1)]
    >>> print(bar_line(0.5, fields, 60, ascii_only=True))
    #######-------  epoch 3/60  step 7/62  loss 1.234  0:12 left
    >>> print(bar_line(0.5, fields, 36, ascii_only=True))
    epoch 3/60  loss 1.234  0:12 left
    """
    from rich.text import Text

    room = width
    kept: set[int] = set()
    for rank, size in sorted([*((each.rank, len(each.text)) for each in fields), (BAR, SMALLEST_BAR)]):
        if size + 2 * bool(kept) > room:
            break
        room -= size + 2 * bool(kept)
        kept.add(rank)
    line = Text(no_wrap=True)
    if BAR in kept:
        length = min(longest, SMALLEST_BAR + room)
        done = int(share * length)
        line.append(("#" if ascii_only else "━") * done, "green")
        line.append(("-" if ascii_only else "━") * (length - done), "bright_black")
    for each in fields:
        if each.rank in kept:
            line.append(("  " if line else "") + each.text)
    return line


class Speed:
    """How many per second over the last few seconds, pauses included."""

    def __init__(self, seconds: float = 10.0):
        self._seconds = seconds
        self._added: deque[tuple[float, int]] = deque()  # when, and how many

    def add(self, number: int = 1) -> None:
        now = time.monotonic()
        self._added.append((now, number))
        while len(self._added) > 2 and now - self._added[0][0] > self._seconds:
            self._added.popleft()

    @property
    def per_second(self) -> float:
        """0 before there were two."""
        added = list(self._added)
        passed = added[-1][0] - added[0][0] if added else 0.0
        return sum(number for _, number in added[1:]) / passed if passed else 0.0
