"""What a person sees of a run while it goes: one line of the terminal, or a line per epoch where there is none.

The line is made anew ten times a second from what the run last said: its step, its loss, and the phase that it is in.
Nothing here waits for torch, so that the first line is there before it is imported.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from cigl.common.phases import watching
from cigl.common.text import duration, percent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from cigl.train.run import Progress
    from cigl.train.trainer import Trainer

SMALLEST_BAR, LARGEST_BAR = 6, 40
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def progress_bar(quiet: bool = False, title: str = "") -> Iterator[Progress | None]:
    """A function for ``train(progress=...)``. ``title`` is printed once, above the line that moves."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _print_epoch
    else:
        display = Display()
        if title:
            print(title, file=sys.stderr)
        with display.on_terminal():
            yield display.show


class Display:
    """The state of the line; rich asks for it from a thread of its own."""

    def __init__(self, idle: str = "starting") -> None:
        self._idle = idle
        self._phases: tuple[str, ...] = ()
        self._entered = time.monotonic()
        self._run: _Run | None = None

    @contextmanager
    def on_terminal(self) -> Iterator[None]:
        """Shown, with the phases that are entered, until the block ends."""
        from rich.console import Console
        from rich.live import Live

        done = threading.Event()

        def refresh() -> None:
            while not done.wait(0.1):
                live.refresh()

        with Live(self, console=Console(stderr=True), transient=True, auto_refresh=False) as live:
            # not rich's own thread, which may outlive the block and then abort a process that ends at once
            thread = threading.Thread(target=refresh, daemon=True)
            thread.start()
            try:
                with watching(self.enter):
                    yield
            finally:
                done.set()
                thread.join()

    def enter(self, phases: tuple[str, ...]) -> None:
        self._phases, self._entered = phases, time.monotonic()

    def show(self, trainer: Trainer, row: dict[str, Any] | None) -> None:
        if self._run is None or self._run.trainer is not trainer:  # a pilot, and then the run itself
            self._run = _Run(trainer)
        self._run.update(row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run, phase = self._run, ": ".join(self._phases)
        if run is not None and run.is_training:
            head = [Field(phase, 0)] if phase else []
            width = options.max_width - 3  # for the ^C that a terminal writes behind it
            yield bar_line(run.share, [*head, *run.fields()], width, options.ascii_only)
        else:
            yield self._waiting(phase or self._idle, options.ascii_only)

    def _waiting(self, phase: str, ascii_only: bool) -> Text:
        from rich.text import Text

        if not phase:
            return Text("")
        seconds = time.monotonic() - self._entered
        frames = "|/-\\" if ascii_only else SPINNER
        passed = f"  {duration(seconds)}" if seconds >= 1 else ""
        return Text(f"{frames[int(10 * time.monotonic()) % len(frames)]} {phase}{passed}", no_wrap=True)


class _Run:
    """A run as its steps report it."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.total = trainer.config.epochs * trainer.steps_per_epoch
        self._speed, self._loss = Speed(), RunningMean()
        self._row: dict[str, Any] = {}

    @property
    def is_training(self) -> bool:
        return self.trainer.step < self.total

    @property
    def share(self) -> float:
        return self.trainer.step / self.total

    def update(self, row: dict[str, Any] | None) -> None:
        if row is None:
            self._speed.step()
            self._loss.add(self.trainer.last_loss)
        else:
            self._row = row

    def fields(self) -> list[Field]:
        """In the order in which they are shown, each with its importance."""
        trainer, row = self.trainer, self._row
        config, per_second = trainer.config, self._speed.per_second
        epoch = min(trainer.epoch + 1, config.epochs)
        fields = [
            Field(f"epoch {epoch}/{config.epochs}", 2),
            Field(f"step {trainer.batch}/{trainer.steps_per_epoch}", 5),
            Field(f"loss {self._loss.value:.3f}", 3),
        ]
        if row:
            fields.append(Field(f"accuracy {percent(row['accuracy'], 1)}", 8))
        if "validation_accuracy" in row:
            fields.append(Field(f"validation {percent(row['validation_accuracy'], 1)}", 7))
        if per_second:
            what = "images" if len(trainer.splits.source.shape) == 3 else "examples"
            fields.append(Field(f"{per_second * config.batch_size:,.0f} {what}/s", 6))
            fields.append(Field(f"{duration((self.total - trainer.step) / per_second)} left", 1))
        return fields


class Field(NamedTuple):
    """A part of the line; when there is no room for all, those with the largest number go first."""

    text: str
    rank: int


BAR = 4  # the rank of the bar


def bar_line(share: float, fields: list[Field], width: int, ascii_only: bool = False) -> Text:
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
        length = min(LARGEST_BAR, SMALLEST_BAR + room)
        done = int(share * length)
        line.append(("#" if ascii_only else "━") * done, "green")
        line.append(("-" if ascii_only else "━") * (length - done), "bright_black")
    for each in fields:
        if each.rank in kept:
            line.append(("  " if line else "") + each.text)
    return line


class Speed:
    """Steps per second over the last few seconds, pauses between epochs included."""

    def __init__(self, seconds: float = 10.0):
        self._seconds = seconds
        self._times: deque[float] = deque()

    def step(self) -> None:
        now = time.monotonic()
        self._times.append(now)
        while len(self._times) > 2 and now - self._times[0] > self._seconds:
            self._times.popleft()

    @property
    def per_second(self) -> float:
        """0 before there were two steps."""
        times = list(self._times)
        passed = times[-1] - times[0] if times else 0.0
        return (len(times) - 1) / passed if passed else 0.0


class RunningMean:
    """Of the last hundred or so numbers, and of all as long as there are fewer.

    >>> mean = RunningMean()
    >>> for number in (4.0, 2.0):
    ...     mean.add(number)
    >>> round(mean.value, 1)
    3.0
    """

    def __init__(self, length: int = 100):
        self._keep = 1 - 1 / length
        self._sum = self._weight = 0.0

    def add(self, number: float) -> None:
        self._sum = self._keep * self._sum + number
        self._weight = self._keep * self._weight + 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else float("nan")


def _print_epoch(trainer: Trainer, row: dict[str, Any] | None) -> None:
    if row is None:
        return
    config = trainer.config
    validation = (
        f", validation accuracy {percent(row['validation_accuracy'], 1)}" if "validation_accuracy" in row else ""
    )
    print(
        f"{config.method} {percent(config.sparsity)} {config.model} on {config.dataset}, epoch "
        f"{row['epoch']}/{config.epochs}: loss {row['loss']:.3f}, accuracy {percent(row['accuracy'], 1)}{validation}, "
        f"lr {row['lr']:.4g}",
        file=sys.stderr,
    )
