"""TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@contextmanager
def tensorboard(folder: Path, epoch: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes an epoch's metrics; what a killed process had written after ``epoch`` is hidden."""
    if find_spec("tensorboard") is None:
        yield lambda row: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1) as writer:

        def write(row: dict[str, Any]) -> None:
            for name, value in row.items():
                if name != "epoch":
                    writer.add_scalar(name, value, row["epoch"])
            writer.flush()

        yield write
