"""Which classes are recognised, and which are taken for others: counts, a figure and a sentence."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cigl.calibrate.reports.diagram import save_figure
from cigl.common.files import write
from cigl.common.text import percent, printable

FILE, FIGURE = "confusion.csv", "confusion.svg"
DRAWN = 60  # classes at most
WRITTEN_IN = 12  # classes up to which the figure's squares have their numbers
NAMED = 6  # classes in a sentence

Counts = npt.NDArray[np.int64]  # [class, what it was taken for]


def confusions(logits: Tensor, labels: Tensor, classes: int) -> Counts:
    """
    >>> confusions(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 1, 1]), 2)
    array([[1, 0],
           [1, 1]])
    """
    pairs = labels * classes + logits.argmax(1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).numpy()


def write_confusions(folder: Path, counts: Counts, names: Sequence[str]) -> None:
    """A row for each class."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["class", *names])
    rows.writerows([name, *row] for name, row in zip(names, counts.tolist(), strict=True))
    write(folder / FILE, text.getvalue().encode())


def draw_confusions(folder: Path, counts: Counts, names: Sequence[str]) -> None:
    """The figure, where it can be read."""
    if len(names) <= DRAWN:
        side = 1.6 + 0.3 * len(names) + 0.06 * max(map(len, names))
        save_figure(lambda figure: _draw(figure, counts, names), folder / FIGURE, (side, side))


def read_confusions(folder: Path) -> tuple[Counts, list[str]] | None:
    """None of a run of an earlier version."""
    if not (folder / FILE).is_file():
        return None
    (_, *names), *rows = csv.reader(io.StringIO((folder / FILE).read_text("utf-8")))
    return np.array([row[1:] for row in rows], dtype=np.int64), names


def by_class(counts: Counts, names: Sequence[str]) -> str:
    """The share that is right of each class, lowest first, and what the lowest are taken for.

    >>> by_class(np.array([[8, 2], [0, 10]]), ["cat", "dog"])
    'Right by class: cat 80.0 % (else mostly dog), dog 100.0 %.'
    """
    totals = counts.sum(1)
    right = np.divide(counts.diagonal(), totals, out=np.ones(len(totals)), where=totals > 0)
    order = [k for k in np.argsort(right, kind="stable") if totals[k]]
    parts = []
    for k in order[:NAMED]:
        wrong = counts[k] * (np.arange(len(totals)) != k)
        other = f" (else mostly {printable(names[int(wrong.argmax())])})" if 2 * wrong.max() > wrong.sum() else ""
        parts.append(f"{printable(names[k])} {percent(right[k], 1)}{other}")
    rest = (
        f", and {len(order) - NAMED} more with {percent(right[order[NAMED]], 1)} or above" if len(order) > NAMED else ""
    )
    return f"Right by class: {', '.join(parts)}{rest}."


def _draw(figure: Any, counts: Counts, names: Sequence[str]) -> None:
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    axes = figure.add_subplot(xlabel="taken for", ylabel="class")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    shown = [printable(name) for name in names]
    axes.set_xticks(range(len(names)), shown, rotation=90)
    axes.set_yticks(range(len(names)), shown)
    axes.set_title(f"right in {percent(counts.trace() / max(1, counts.sum()), 1)} of {counts.sum():,}")
    if len(names) <= WRITTEN_IN:
        for (row, column), number in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{number:,}", ha="center", va="center", color=colour, fontsize=7)
