"""What a person sees of a run: a progress bar while it goes, a table when it is done."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cigl.calibrate import Report
from cigl.train.run import Progress
from cigl.train.trainer import Trainer


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress | None]:
    """Images per second, loss, accuracy, density and time left; where there is no terminal, a line per epoch."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}{task.fields[numbers]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[int, Any] = {}
        speeds: dict[int, Speed] = {}

        def show(trainer: Trainer, row: dict[str, Any] | None) -> None:
            if id(trainer) not in tasks:
                total = trainer.config.epochs * trainer.steps_per_epoch
                tasks[id(trainer)] = bar.add_task(describe(trainer), total=total, speed="", numbers="")
                speeds[id(trainer)] = Speed(trainer.config.batch_size)
            task = tasks[id(trainer)]
            bar.update(task, completed=trainer.step, speed=f"{speeds[id(trainer)].per_second():,.0f} images/s")
            if row is not None:
                bar.update(task, numbers=f", {numbers(row)}")

        yield show


class Speed:
    """Images per second over the last few seconds."""

    def __init__(self, batch_size: int, seconds: float = 5.0):
        self._batch_size, self._seconds = batch_size, seconds
        self._times: deque[float] = deque()

    def per_second(self) -> float:
        """After each step."""
        now = time.monotonic()
        self._times.append(now)
        while len(self._times) > 2 and now - self._times[0] > self._seconds:
            self._times.popleft()
        passed = now - self._times[0]
        return (len(self._times) - 1) * self._batch_size / passed if passed else 0.0


def describe(trainer: Trainer) -> str:
    config = trainer.config
    return f"{config.method} {config.sparsity:.0%} {config.model} on {config.dataset}"


def numbers(row: dict[str, Any]) -> str:
    held_out = f", held out {row['validation_accuracy']:.3f}" if "validation_accuracy" in row else ""
    return (
        f"loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}{held_out}, density {row['density']:.4f}, "
        f"lr {row['lr']:.4g}"
    )


def _line(trainer: Trainer, row: dict[str, Any] | None) -> None:
    if row is not None:
        print(f"{describe(trainer)}, epoch {row['epoch']}/{trainer.config.epochs}: {numbers(row)}", file=sys.stderr)


def show_result(folder: Path, result: dict[str, Any]) -> None:
    """The report's table and where everything is."""
    report = Report.from_json(folder / "report.json")
    print(report)
    if result["temperature"] is not None:
        print(f"\nwith temperature {result['temperature']:.3f}")
        print(Report.from_json(folder / "report-temperature.json"))
    print(f"\nthe run is in {folder}: model.safetensors, report.json, metrics.jsonl")
    print(f"reliability diagram: cigl evaluate {folder}")
