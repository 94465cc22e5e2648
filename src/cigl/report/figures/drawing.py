"""Draws what ``figures`` prepares, for documents; ``charts`` draws it for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cigl.calibrate import Report, reliability_diagrams
from cigl.calibrate.reports.diagram import save_figure
from cigl.common.text import percent
from cigl.report.evidence.figure_data import Line, LinesData, MasksData, Panel, PolygonsData, ReliabilityData, place
from cigl.report.figures.styles import COLORS, DASHES, MARKERS, Look, looks

_WIDE = 6.8  # inches: the width of a text column
_SMALL = 7  # points


def _marks(look: Look, size: float = 3.8) -> dict[str, Any]:
    """Open markers are filled with white, so that their lines don't show through."""
    color = COLORS[look.color]
    face = color if look.filled else "white"
    return {"color": color, "marker": MARKERS[look.marker], "markersize": size, "markerfacecolor": face}


def _stroke(look: Look) -> Any:
    return (0, DASHES[look.dash]) if DASHES[look.dash] else "-"


def _label(label: str) -> str:
    """Matplotlib leaves what begins with _ out of legends."""
    return f" {label}" if label.startswith("_") else label


def plot_lines(data: LinesData, path: Path) -> None:
    """Means with 95 % intervals: bands for CigL and the reference, bars for the others."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(data.panels))
        for panel, axis in zip(data.panels, axes, strict=True):
            styles = looks(line.method for line in panel.lines)
            for number, line in enumerate(panel.lines):
                _draw_line(axis, line, styles[line.method], number - len(panel.lines) / 2, data)
            if panel.floor:
                shown = {s: floor for s, floor in panel.floor.items() if s in data.sparsity}
                axis.plot(
                    [place(s) for s in shown],
                    list(shown.values()),
                    label="noise floor",
                    color="0.5",
                    linewidth=0.8,
                    linestyle=(0, (1, 3)),
                )
                axis.set_ylim(bottom=0)
            axis.set_ylabel(panel.title)
            _sparsity_axis(axis, data.sparsity)
        _legend(figure, axes[0])

    save_figure(draw, path, (_WIDE, 2.7))


def _draw_line(axis: Any, line: Line, style: Look, aside: float, data: LinesData) -> None:
    """A method that has no sparsity of the others (the dense network) is a level."""
    color, stroke, band = COLORS[style.color], _stroke(style), line.method in data.bold
    if not set(line.sparsity) & set(data.sparsity):
        axis.axhline(line.mean[0], color=color, linestyle=stroke, linewidth=0.9, label=_label(line.label))
        return
    x = [place(s) + (0.0 if band else 0.012 * aside) for s in line.sparsity]  # so that intervals don't overlap
    width, above = (1.5, 4) if band else (0.9, 3)
    axis.plot(x, line.mean, **_marks(style), linestyle=stroke, linewidth=width, label=_label(line.label), zorder=above)
    if band and len(x) > 1:
        axis.fill_between(x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
    else:
        ends = _ends(line, range(len(x)))
        axis.errorbar(x, line.mean, ends, fmt="none", ecolor=color, elinewidth=0.6, alpha=0.7)


def _ends(line: Line, kept: Sequence[int]) -> list[list[float]]:
    """How far the interval reaches below and above the mean."""
    below = [max(line.mean[i] - line.low[i], 0.0) for i in kept]
    return [below, [max(line.high[i] - line.mean[i], 0.0) for i in kept]]


def _sparsity_axis(axis: Any, sparsities: Sequence[float]) -> None:
    """A tick per sparsity; where two would collide, the later one stays."""
    ends = place(max(sparsities, default=0.0)), place(min(sparsities, default=0.0))
    apart = 0.075 * max(ends[0] - ends[1], 0.1)
    labels: dict[float, str] = {}
    for sparsity in reversed(sparsities):
        free = all(place(other) - place(sparsity) > apart for other in labels)
        if free:
            labels[sparsity] = f"{100 * sparsity:.6g}"
    axis.set_xticks([place(s) for s in labels], list(labels.values()))
    axis.set_xticks([place(s) for s in sparsities], minor=True)
    axis.set_xlabel("sparsity (%)")
    axis.grid(axis="y", color="0.9", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, axis: Any, columns: int = 4) -> None:
    """Below the panels, with as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(columns, len(labels), int(100 / (longest + 6))))
    figure.tight_layout()
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": columns}
    figure.legend(handles, labels, **where, frameon=False, fontsize=_SMALL, handlelength=3)


def plot_points(data: LinesData, path: Path) -> None:
    """Means with 95 % intervals, side by side at each sparsity."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(data.panels))
        for panel, axis in zip(data.panels, axes, strict=True):
            _draw_points(axis, panel, data.sparsity)
            axis.set_xticks(range(len(data.sparsity)), [f"{100 * s:.6g}" for s in data.sparsity])
            axis.set(xlabel="sparsity (%)", ylabel=f"{panel.title}, {panel.better} is better")
            axis.set_xlim(-0.5, len(data.sparsity) - 0.5)
            if panel.floor:
                axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", color="0.9", linewidth=0.5)
            axis.set_axisbelow(True)
        _legend(figure, axes[0])

    save_figure(draw, path, (_WIDE, 2.7))


def _draw_points(axis: Any, panel: Panel, sparsities: Sequence[float]) -> None:
    """At each sparsity, the methods that were run there share its width."""
    styles = looks(line.method for line in panel.lines)
    at = {s: [line.method for line in panel.lines if s in line.sparsity] for s in sparsities}
    for line in panel.lines:
        kept = [i for i, s in enumerate(line.sparsity) if s in sparsities]
        x = []
        for s in (line.sparsity[i] for i in kept):
            x.append(sparsities.index(s) + 0.84 * ((at[s].index(line.method) + 0.5) / len(at[s]) - 0.5))
        y, ends, style = [line.mean[i] for i in kept], _ends(line, kept), styles[line.method]
        axis.errorbar(x, y, ends, **_marks(style), linestyle="none", elinewidth=0.8, label=_label(line.label))


def plot_polygons(data: PolygonsData, path: Path) -> None:
    """The smaller polygon has the lower ECE; the axes go from 0 in the middle."""

    def draw(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots(1, len(data.panels), subplot_kw={"projection": "polar"}, squeeze=False)[0]
        top = 1.08 * max(max(panel.cigl.mean + panel.other.mean) for panel in data.panels)
        for panel, axis in zip(data.panels, axes, strict=True):
            corners = len(panel.sparsity)
            angles = [2 * math.pi * i / corners for i in range(corners)]
            axis.set_theta_zero_location("N")
            axis.set_theta_direction(-1)
            for line, method in ((panel.other, "rigl"), (panel.cigl, "cigl")):
                style, values = looks([method])[method], line.mean
                axis.plot(
                    [*angles, angles[0]],
                    [*values, values[0]],
                    **_marks(style, 3.2),
                    linewidth=1.2,
                    label=_label(line.label),
                )
                axis.fill(angles, values, color=COLORS[style.color], alpha=0.12)
            axis.set_xticks(angles, [percent(s) for s in panel.sparsity], fontsize=_SMALL)
            axis.set_ylim(0, top)
            axis.yaxis.set_major_locator(MaxNLocator(4, prune="lower"))
            axis.set_rlabel_position(180 / corners)
            axis.tick_params(axis="x", pad=0)
            axis.tick_params(axis="y", labelsize=6, colors="0.35")
            axis.grid(color="0.88", linewidth=0.5)
            axis.spines["polar"].set_color("0.8")
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, fontsize=_SMALL)
        figure.subplots_adjust(wspace=0.5)

    save_figure(draw, path, (2.35 * len(data.panels), 2.6))


def plot_masks(data: MasksData, path: Path) -> None:
    """Left the accuracy of W and of Z*W, right the drop; bars are the standard deviation over seeds."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        styles = looks(name for line in data.lines for name in (line.method, f"{line.method} Z*W"))
        for line in data.lines:
            x = [place(s) for s in line.sparsity]
            whole, masked = styles[line.method], styles[f"{line.method} Z*W"]
            parts = (
                (left, "W", line.whole, whole),
                (left, "Z*W", line.masked, masked),
                (right, "drop", line.drop, whole),
            )
            for axis, name, values, style in parts:
                look = {**_marks(style), "linestyle": _stroke(style), "linewidth": 1.1, "elinewidth": 0.7}
                axis.errorbar(x, values.mean, values.sd, label=f"{_label(line.label)}: {name}", **look)
        sparsities = sorted({s for line in data.lines for s in line.sparsity})
        for axis, title in ((left, "Accuracy (%)"), (right, "Drop from W to Z*W (points)")):
            axis.set_ylabel(title)
            _sparsity_axis(axis, sparsities)
        right.axhline(0, color="0.5", linewidth=0.6)
        _legend(figure, left)

    save_figure(draw, path, (_WIDE, 2.6))


def plot_reliability(data: ReliabilityData, path: Path) -> None:
    reliability_diagrams({panel.title: Report.from_json(panel.report) for panel in data.panels}, path)
