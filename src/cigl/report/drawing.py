"""Draws what ``figures`` prepares, in the colours of Okabe & Ito; no method is distinguished by its colour alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cigl.calibrate import Report, reliability_diagrams
from cigl.calibrate.diagram import save_figure
from cigl.report.figure_data import Line, LinesData, MasksData, Panel, PolygonsData, ReliabilityData


class Look(NamedTuple):
    color: str
    marker: str
    line: Any


_DASHED, _DOTTED, _MIXED = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2))
_BLUE, _RED, _SKY, _GREEN = "#0072B2", "#D55E00", "#56B4E9", "#009E73"
_PINK, _ORANGE, _GREY, _BLACK = "#CC79A7", "#E69F00", "#777777", "#000000"
_LOOKS = {
    "dense": Look(_BLACK, "s", _DASHED), "rigl": Look(_BLUE, "o", "-"), "cigl": Look(_RED, "D", "-"),
    "rigl-annealed": Look(_SKY, "^", _DASHED), "rigl-bn": Look(_SKY, "v", _DOTTED),
    "rigl-mixup": Look(_ORANGE, "<", _DASHED), "rigl-ls": Look(_GREY, ">", _DASHED),
    "rigl-wdp": Look(_GREEN, "s", _DASHED), "rigl-wdp-pw": Look(_GREEN, "P", _DOTTED),
    "rigl-mcdp": Look(_PINK, "X", _DASHED), "set": Look(_GREEN, "o", "-"), "sup-tickets": Look(_BLACK, "h", _MIXED),
    "cigl-pw": Look(_PINK, "p", _MIXED), "cigl-pw-pilot": Look(_GREEN, "*", _MIXED),
    "cigl-mixup": Look(_ORANGE, "H", _MIXED), "cigl-no-rm": Look(_SKY, "d", _MIXED),
    "cigl-no-wma": Look(_GREY, "X", _MIXED), "cigl-mask-10": Look(_RED, "v", _DOTTED),
}  # fmt: skip
_OTHERS = [
    Look(color, marker, line)
    for line, marker in ((_MIXED, "8"), (_DOTTED, "o"), (_DASHED, "^"))
    for color in (_GREEN, _PINK, _GREY, _BLACK, _SKY, _ORANGE)
]
_WIDE = 6.8  # inches: the width of a text column
_SMALL = 7  # points


def look(method: str, place: int = 0) -> Look:
    """The same in every figure; methods of a user's own study have theirs by their place in it."""
    return _LOOKS.get(method, _OTHERS[place % len(_OTHERS)])


def _label(label: str) -> str:
    """Matplotlib leaves what begins with _ out of legends."""
    return f" {label}" if label.startswith("_") else label


def place(sparsity: float) -> float:
    """On the axis: by orders of magnitude of the density, so that 90 and 99 % are as far apart as 99 and 99.9 %.

    >>> round(place(0.99), 6), place(0.0)
    (2.0, 0.0)
    """
    return -math.log10(1 - sparsity) + 0.0


def plot_lines(data: LinesData, path: Path) -> None:
    """Means with 95 % intervals: bands for CigL and the reference, bars for the others."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(data.panels))
        for panel, axis in zip(data.panels, axes, strict=True):
            for number, line in enumerate(panel.lines):
                _draw_line(axis, line, number, len(panel.lines), line.method in data.bold)
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


def _draw_line(axis: Any, line: Line, number: int, lines: int, band: bool) -> None:
    style = look(line.method, number)
    if len(line.sparsity) == 1:  # a method without sparsities of its own: a level
        axis.axhline(line.mean[0], color=style.color, linestyle=style.line, linewidth=0.9, label=_label(line.label))
        return
    spread = 0.0 if band else 0.012 * (number - lines / 2)  # side by side, so that intervals don't overlap
    x = [place(s) + spread for s in line.sparsity]
    axis.plot(
        x,
        line.mean,
        color=style.color,
        linestyle=style.line,
        marker=style.marker,
        markersize=3.8,
        linewidth=1.5 if band else 0.9,
        label=_label(line.label),
        zorder=4 if band else 3,
    )
    if band:
        axis.fill_between(x, line.low, line.high, color=style.color, alpha=0.16, linewidth=0)
    else:
        ends = _ends(line, range(len(x)))
        axis.errorbar(x, line.mean, ends, fmt="none", ecolor=style.color, elinewidth=0.6, alpha=0.7)


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


def plot_bars(data: LinesData, path: Path) -> None:
    """ECE as bars from 0; accuracy as points, because bars that don't begin at 0 mislead. Intervals are 95 %."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(data.panels))
        for panel, axis in zip(data.panels, axes, strict=True):
            _draw_bars(axis, panel, data.sparsity)
            axis.set_xticks(range(len(data.sparsity)), [f"{100 * s:.6g}" for s in data.sparsity])
            axis.set(xlabel="sparsity (%)", ylabel=panel.title)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", color="0.9", linewidth=0.5)
            axis.set_axisbelow(True)
        _legend(figure, axes[0])

    save_figure(draw, path, (_WIDE, 2.7))


def _draw_bars(axis: Any, panel: Panel, sparsities: Sequence[float]) -> None:
    width = 0.84 / max(len(panel.lines), 1)
    for number, line in enumerate(panel.lines):
        style = look(line.method, number)
        kept = [i for i, s in enumerate(line.sparsity) if s in sparsities]
        x = [sparsities.index(line.sparsity[i]) + (number + 0.5) * width - 0.42 for i in kept]
        y, ends, label = [line.mean[i] for i in kept], _ends(line, kept), _label(line.label)
        if panel.floor:
            hatch = "" if style.line == "-" else "////" if style.line == _DASHED else "...."
            axis.bar(x, y, width * 0.92, color=style.color, label=label, hatch=hatch, edgecolor="white", linewidth=0)
            axis.errorbar(x, y, ends, fmt="none", ecolor="black", elinewidth=0.7)
        else:
            axis.errorbar(x, y, ends, fmt=style.marker, color=style.color, markersize=3.8, elinewidth=0.8, label=label)


def plot_polygons(data: PolygonsData, path: Path) -> None:
    """The smaller polygon has the lower ECE; the axes go from 0 in the middle."""

    def draw(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots(1, len(data.panels), subplot_kw={"projection": "polar"}, squeeze=False)[0]
        top = 1.08 * max(max(panel.cigl + panel.other) for panel in data.panels)
        for panel, axis in zip(data.panels, axes, strict=True):
            corners = len(panel.sparsity)
            angles = [2 * math.pi * i / corners for i in range(corners)]
            axis.set_theta_zero_location("N")
            axis.set_theta_direction(-1)
            for values, label, method in ((panel.other, panel.label, "rigl"), (panel.cigl, data.label, "cigl")):
                style = look(method)
                axis.plot(
                    [*angles, angles[0]],
                    [*values, values[0]],
                    color=style.color,
                    marker=style.marker,
                    markersize=3.2,
                    linewidth=1.2,
                    label=_label(label),
                )
                axis.fill(angles, values, color=style.color, alpha=0.12)
            axis.set_xticks(angles, [f"{100 * s:.6g} %" for s in panel.sparsity], fontsize=_SMALL)
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
        for number, line in enumerate(data.lines):
            style = look(line.method, number)
            x = [place(s) for s in line.sparsity]
            parts = (
                (left, "W", line.whole, style.marker, "-", None),
                (left, "Z*W", line.masked, "o", _DASHED, "white"),
                (right, "drop", line.drop, style.marker, "-", None),
            )
            for axis, name, values, marker, stroke, fill in parts:
                axis.errorbar(
                    x,
                    values.mean,
                    values.sd,
                    label=f"{_label(line.label)}: {name}",
                    color=style.color,
                    marker=marker,
                    linestyle=stroke,
                    markerfacecolor=fill,
                    markersize=3.8,
                    linewidth=1.1,
                    elinewidth=0.7,
                )
        sparsities = sorted({s for line in data.lines for s in line.sparsity})
        for axis, title in ((left, "Accuracy (%)"), (right, "Drop from W to Z*W (points)")):
            axis.set_ylabel(title)
            _sparsity_axis(axis, sparsities)
        right.axhline(0, color="0.5", linewidth=0.6)
        _legend(figure, left)

    save_figure(draw, path, (_WIDE, 2.6))


def plot_reliability(data: ReliabilityData, path: Path) -> None:
    reliability_diagrams({panel.title: Report.from_json(panel.report) for panel in data.panels}, path)
