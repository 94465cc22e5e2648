"""What a person sees of a run while it goes: one line of the terminal, or a line per epoch where there is none.

Nothing here waits for torch, so that the first line is there before it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cigl.common.progress import Field, Phases, Speed, bar_line
from cigl.common.text import confidence, duration, percent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cigl.train.run import Progress
    from cigl.train.trainer import Trainer


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


class Display(Phases):
    """A bar while a run trains, and the phase that it is in while it does not."""

    def __init__(self) -> None:
        super().__init__("starting")
        self._trainer: Trainer | None = None

    def show(self, trainer: Trainer, row: dict[str, Any] | None) -> None:
        """After every step, and with the row of its metrics after every epoch."""
        if self._trainer is not trainer:  # a pilot, and then the run itself
            self._trainer = trainer
            self._row: dict[str, Any] = {}
            self._speed, self._loss = Speed(), RunningMean()
        if row is None:
            self._speed.add()
            self._loss.add(trainer.last_loss)
        else:
            self._row = row

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trainer = self._trainer
        if trainer is None or trainer.step == (total := trainer.config.epochs * trainer.steps_per_epoch):
            yield from super().__rich_console__(console, options)
            return
        fields = [Field(phase, 0)] if (phase := ": ".join(self._phases)) else []
        fields += self._fields(trainer, total - trainer.step)
        width = options.max_width - 3  # for the ^C that a terminal writes behind it
        yield bar_line(trainer.step / total, fields, width, options.ascii_only)

    def _fields(self, trainer: Trainer, steps_left: int) -> Iterator[Field]:
        """In the order in which they are shown, each with its importance."""
        config, per_second = trainer.config, self._speed.per_second
        yield Field(f"epoch {min(trainer.epoch + 1, config.epochs)}/{config.epochs}", 2)
        yield Field(f"step {trainer.batch}/{trainer.steps_per_epoch}", 5)
        yield Field(f"loss {self._loss.value:.3f}", 3)
        if self._row:
            yield Field(f"accuracy {percent(self._row['accuracy'], 1)}", 8)
        if "validation_accuracy" in self._row:
            yield Field(f"validation {percent(self._row['validation_accuracy'], 1)}", 7)
        if "gap" in self._row:
            yield Field(confidence(self._row["mask_rate"], self._row["gap"]), 4)
        if per_second:
            what = "images" if len(trainer.splits.source.shape) == 3 else "examples"
            yield Field(f"{per_second * config.batch_size:,.0f} {what}/s", 6)
            yield Field(f"{duration(steps_left / per_second)} left", 1)


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
    mask = f", {confidence(row['mask_rate'], row['gap'])}" if "gap" in row else ""
    print(
        f"{config.method} {percent(config.sparsity)} {config.model} on {config.dataset}, epoch "
        f"{row['epoch']}/{config.epochs}: loss {row['loss']:.3f}, accuracy {percent(row['accuracy'], 1)}{validation}, "
        f"lr {row['lr']:.4g}{mask}",
        file=sys.stderr,
    )
