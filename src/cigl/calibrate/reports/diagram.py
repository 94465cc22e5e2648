"""Figures. ``prepare_...`` computes what is shown and returns plain data; the rest only draws it.

matplotlib is imported when something is drawn, and its global state (pyplot) is never touched.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cigl.calibrate.reports.classification import Estimate, Report
from cigl.common.errors import CiglError
from cigl.common.files import whole_file

if TYPE_CHECKING:
    from cigl.calibrate.reports.shift import Shift

FORMATS = (".svg", ".png", ".pdf")
_STYLE: Any = {
    "font.size": 8, "axes.linewidth": 0.6, "hatch.linewidth": 0.6, "svg.hashsalt": "cigl",
    "text.parse_math": False,  # a $ in a user's title is a dollar
}  # fmt: skip
_HEADROOM = 1.4  # the corner above 1, where no bar can be
_COLUMNS = ("low", "high", "count", "confidence", "accuracy", "accuracy_low", "accuracy_high")  # of a report's table
_PANEL = (3.2, 3.9)  # inches
_LETTERS = 38  # of a title's line
_MANY = 40  # bins, from which on edges and intervals would hide the bars
_MARKS = "os^Dv<>Pp*"
_LINES = ("-", "--", "-.", ":")


def prepare_reliability_diagram(report: Report) -> dict[str, Any]:
    """What a reliability diagram shows: a bar per bin that has samples, and the text of its corner.

    >>> from cigl.calibrate import prepare_reliability_diagram
    >>> from cigl.calibrate.reports.classification import report
    >>> shown = prepare_reliability_diagram(report(probabilities=[[0.9, 0.1]] * 4, labels=[0, 0, 0, 1], bins=10))
    >>> [(bar["count"], bar["accuracy"], round(bar["confidence"], 2)) for bar in shown["bars"]]
    [(4, 0.75, 0.9)]
    """
    bars = [{name: getattr(row, name) for name in _COLUMNS} for row in report.table if row.count]
    text = [f"ECE ({report.bins} bins) {_shown(report.ece)}", f"noise floor {report.ece.floor:.3f}"]
    text += [f"accuracy {report.accuracy:.3f}", f"n = {report.n:,}"]
    return {"n": report.n, "bins": report.bins, "bars": bars, "text": text}


def reliability_diagrams(reports: Mapping[str, Report], path: str | os.PathLike[str]) -> None:
    """Reliability diagrams side by side, one per named report; .svg, .png or .pdf by the path's suffix.

    Bars are the accuracy per bin with its 95 % Clopper-Pearson interval; the hatched part reaches to the mean
    confidence: where it stands above the dot, the model is over-confident. Below, where the samples are.

    >>> from cigl import reliability_diagrams
    >>> import tempfile
    >>> from cigl.calibrate.reports.classification import report
    >>> one = report(probabilities=[[0.9, 0.1]] * 4, labels=[0, 0, 0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reliability_diagrams({"dense": one, "sparse": one}, f"{folder}/both.svg")
    """
    if not isinstance(reports, Mapping) or not all(isinstance(one, Report) for one in reports.values()):
        raise CiglError("pass {name: report, ...}; a single report draws itself, report.reliability_diagram(path).")
    if not reports:
        raise CiglError("there are no reports to draw: pass {name: report, ...}.")
    columns = min(len(reports), 4)
    rows = math.ceil(len(reports) / columns)
    titles = [textwrap.wrap(str(name), _LETTERS)[:3] for name in reports]
    lines = max(map(len, titles))  # all have as many, so that their diagrams have one height

    def draw(figure: Any) -> None:
        figure.set_layout_engine("constrained")
        parts = figure.subfigures(rows, columns, squeeze=False).flat
        for part, title, report in zip(parts, titles, reports.values(), strict=False):
            part.suptitle("\n".join([""] * (lines - len(title)) + title), fontsize=8)
            upper, lower = part.subplots(2, 1, sharex=True, height_ratios=(4, 1))
            draw_bars(upper, lower, prepare_reliability_diagram(report))
        handles, labels = upper.get_legend_handles_labels()
        style = {"columnspacing": 1, "handlelength": 1.5, "frameon": False, "fontsize": 7}
        figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, **style)

    save_figure(draw, path, (_PANEL[0] * columns, _PANEL[1] * rows))


def draw_bars(upper: Any, lower: Any, shown: Mapping[str, Any], color: Any = "0.82") -> None:
    """A reliability diagram on two axes: ``prepare_reliability_diagram`` says what it shows."""
    columns = {name: np.array([bar[name] for bar in shown["bars"]]) for name in _COLUMNS}
    left, high, count, confidence, accuracy, accuracy_low, accuracy_high = columns.values()
    few = shown["bins"] <= _MANY
    edge = 0.6 if few else 0
    box = {"width": high - left, "align": "edge", "linewidth": edge}
    upper.plot([0, 1], [0, 1], color="0.35", linestyle="--", linewidth=0.8, zorder=3)
    upper.bar(left, accuracy, color=color, edgecolor="black", label="accuracy", **box)
    hatched = {"facecolor": "none", "edgecolor": "0.25", "hatch": "/////", "zorder": 2, **box}
    upper.bar(left, confidence - accuracy, bottom=accuracy, label="gap to confidence", **hatched)
    whisker = {"elinewidth": 0.8, "capsize": 1.5, "markersize": 2} if few else {"elinewidth": 0.3, "markersize": 1}
    ends = [accuracy - accuracy_low, accuracy_high - accuracy]
    middle = (left + high) / 2
    upper.errorbar(middle, accuracy, ends, fmt="o", color="black", zorder=4, label="95 % interval", **whisker)
    upper.axhline(1, color="black", linewidth=0.4)
    upper.set(xlim=(0, 1), ylim=(0, _HEADROOM), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1], ylabel="accuracy")
    upper.text(0.03, 0.98, "\n".join(shown["text"]), transform=upper.transAxes, va="top", fontsize=7, linespacing=1.25)
    upper.tick_params(labelbottom=False)
    lower.bar(left, count, color="0.55", edgecolor="black", **box)
    lower.set(xlabel="confidence", ylabel="samples")
    lower.locator_params(axis="y", nbins=2, integer=True)


def prepare_shift_figure(shift: Shift) -> dict[str, Any]:
    """Per number and kind: severities, values, interval ends and, for the ECE, floors."""
    names = ("accuracy", "nll", "ece")
    bins = next(iter(next(iter(shift.reports.values())).values())).bins
    panels: dict[str, Any] = {}
    for name in names:
        lines = {}
        for kind, row in shift.reports.items():
            estimates = [getattr(one, name) for one in row.values()]
            lines[kind] = {
                "severity": list(row),
                "value": [float(e) for e in estimates],
                "low": [e.low for e in estimates],
                "high": [e.high for e in estimates],
                "floor": [e.floor for e in estimates],
            }
        panels[f"ece_{bins}" if name == "ece" else name] = lines
    return panels


def shift_figure(shift: Shift, path: str | os.PathLike[str]) -> None:
    """Draw ``prepare_shift_figure``; intervals are 95 %, the dotted line of the ECE is the mean noise floor."""
    panels = prepare_shift_figure(shift)

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(panels))
        for panel, (name, lines) in zip(axes, panels.items(), strict=True):
            for number, (kind, line) in enumerate(lines.items()):
                spread = 0.12 * (number - (len(lines) - 1) / 2)  # side by side, so that intervals don't overlap
                value, low, high = (np.array(line[part]) for part in ("value", "low", "high"))
                panel.errorbar(
                    [s + spread for s in line["severity"]],
                    value,
                    np.maximum([value - low, high - value], 0),
                    label=kind,
                    color=str(round(0.55 * number / max(1, len(lines) - 1), 2)),
                    marker=_MARKS[number % len(_MARKS)],
                    linestyle=_LINES[number % len(_LINES)],
                    markersize=3.5,
                    linewidth=0.9,
                    elinewidth=0.6,
                )
            if floors := [f for line in lines.values() for f in line["floor"] if f is not None]:
                panel.axhline(
                    sum(floors) / len(floors), color="black", linestyle=(0, (1, 3)), linewidth=0.9, label="noise floor"
                )
                panel.set_ylim(bottom=0)
            panel.set(xlabel="severity (0: as they are)", title=name, xticks=next(iter(lines.values()))["severity"])
        axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=7, frameon=False, handlelength=3)

    save_figure(draw, path, (9.0, 2.9))


def _shown(e: Estimate) -> str:
    return f"{e:.3f} [{e.low:.3f}, {e.high:.3f}]"


@contextmanager
def new_figure(size: tuple[float, float], style: Any = None, **more: Any) -> Iterator[Any]:
    """An empty figure of ``size`` inches, to be drawn and written inside the context."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CiglError("figures need matplotlib: pip install 'cigl[plot]'.") from None
    with matplotlib.rc_context(_STYLE | (style or {})):
        figure = Figure(figsize=size, **more)
        FigureCanvasAgg(figure)
        yield figure


def save_figure(draw: Any, path: str | os.PathLike[str], size: tuple[float, float]) -> None:
    """``draw(figure)`` on an empty figure of ``size`` inches, and write it whole; the suffix says the format."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise CiglError(f"{Path(path).name} has no suffix that says the format: use {', '.join(FORMATS)}.")
    # The same data, the same file.
    stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
    with new_figure(size) as figure:
        draw(figure)
        with whole_file(path) as file:
            figure.savefig(file, bbox_inches="tight", dpi=160, metadata=stamp)
