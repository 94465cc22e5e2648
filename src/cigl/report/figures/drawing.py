"""The charts of a report, drawn by matplotlib, once for both: side by side for documents, and one by one for the page,
which gives them its colours and lets the points tell their numbers (``interactive``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cigl.calibrate import Report
from cigl.calibrate.reports.diagram import draw_bars, prepare_reliability_diagram, save_figure
from cigl.common.text import percent
from cigl.report.evidence.figure_data import Line, LinesData, Panel, PolygonsData, ReliabilityData, place
from cigl.report.figures.styles import COLORS, DASHES, MARKERS, Look, looks

WIDTH = 3.4  # inches of a panel: two fill a column of text
_HEIGHT, _ROW = 2.5, 0.24  # of a panel, and of a method's row
_SMALL = 7  # points
_LONGEST = 20  # letters of a row's name
_FLOOR: dict[str, Any] = {"color": "0.45", "linewidth": 1.0, "linestyle": (0, (1, 2.5))}


class Tip(NamedTuple):
    """The numbers of one point in words, and where it is on its axes; ``runs`` are of a method at a sparsity."""

    axis: Any
    x: float
    y: float
    text: str
    runs: tuple[str, float] | None = None
    column: bool = False  # found anywhere above or below the point


@dataclass(frozen=True)
class Drawing:
    """One panel: ``draw`` fills an empty figure, or a part of one, and returns what its points tell."""

    title: str
    aside: str
    draw: Callable[[Any], list[Tip]]
    height: float = _HEIGHT


@dataclass(frozen=True)
class Chart:
    """Panels and the legend that they share: samples of lines with their names, and whether there is a noise floor."""

    panels: Sequence[Drawing]
    key: Sequence[tuple[Look, str]] = ()
    floor: bool = False

    def handles(self) -> list[Any]:
        """The lines of the legend, each with its name; matplotlib leaves what begins with _ out of legends."""
        named = [_sample(name, **_marks(look), linestyle=_stroke(look)) for look, name in self.key]
        return [*named, _sample("noise floor", **_FLOOR)] if self.floor else named

    def plot(self, path: Path) -> None:
        """Side by side, for a document."""

        def draw(figure: Any) -> None:
            figure.set_layout_engine("constrained")
            parts = figure.subfigures(1, len(self.panels), squeeze=False)[0]
            for part, panel in zip(parts, self.panels, strict=True):
                panel.draw(part)
                title = ", ".join(filter(None, [panel.title, panel.aside]))
                part.suptitle(title, x=0.02, ha="left", fontsize=8)
            if handles := self.handles():
                longest = max(len(handle.get_label()) for handle in handles)
                columns = max(1, min(4, len(handles), 100 // (longest + 6)))
                where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": columns}
                figure.legend(handles=handles, **where, frameon=False, fontsize=_SMALL, handlelength=3)

        save_figure(draw, path, (WIDTH * len(self.panels), max(panel.height for panel in self.panels)))


def lines(data: LinesData) -> Chart:
    """Means by sparsity with 95 % intervals: bands for CigL and the reference, bars for the others."""
    styles = looks(line.method for line in data.panels[0].lines)
    panels = [Drawing(panel.title, _better(panel), partial(_draw_lines, panel, data, styles)) for panel in data.panels]
    key = [(styles[line.method], line.label) for line in data.panels[0].lines]
    return Chart(panels, key, any(panel.floor for panel in data.panels))


def rows(data: LinesData) -> Chart:
    """One or two sparsities are no line: a row per method with its point and interval, named beside it."""
    drawn = []
    for panel in data.panels:
        number = sum(len(set(data.sparsity) & set(line.sparsity)) for line in panel.lines)
        height = _ROW * (number + (len(data.sparsity) if len(data.sparsity) > 1 else 0)) + 0.7
        drawn.append(Drawing(panel.title, _better(panel), partial(_draw_rows, panel, data.sparsity), height))
    return Chart(drawn, floor=any(panel.floor for panel in data.panels))


def polygons(data: PolygonsData) -> Chart:
    """On the page as lines, which are read more easily than the paper's polygons: a panel per calibrator."""
    both = looks(["cigl", "rigl"])
    drawn = []
    for polygon in data.panels:
        panel = Panel("ECE", (polygon.other, polygon.cigl), {})
        styles = {polygon.cigl.method: both["cigl"], polygon.other.method: both["rigl"]}
        own = LinesData((panel,), polygon.sparsity, tuple(styles))
        drawn.append(Drawing(f"ECE, {polygon.title}", _better(panel), partial(_draw_lines, panel, own, styles)))
    return Chart(drawn, [(both["cigl"], data.panels[0].cigl.label), (both["rigl"], "RigL with the calibrator")])


def reliability(data: ReliabilityData) -> Chart:
    reports = {panel.title: Report.from_json(panel.report) for panel in data.panels}
    return Chart([diagram(title, prepare_reliability_diagram(report)) for title, report in reports.items()])


def diagram(title: str, shown: Mapping[str, Any], color: str = "") -> Drawing:
    """A reliability diagram in grey, or with bars in a tint of one of ``COLORS``."""
    return Drawing(title, "", partial(_draw_diagram, shown, color), 3.9)


def _sample(name: str, **style: Any) -> Any:
    """A line with a marker in its middle."""
    from matplotlib.lines import Line2D

    label = f" {name}" if name.startswith("_") else name
    return Line2D([0.03, 0.5, 0.97], [0.5, 0.5, 0.5], markevery=[1], label=label, **style)


def _better(panel: Panel) -> str:
    return f"{panel.better} is better"


def _marks(look: Look, size: float = 3.8) -> dict[str, Any]:
    """Open markers are filled with white, so that their lines don't show through."""
    color = COLORS[look.color]
    face = color if look.filled else "white"
    return {"color": color, "marker": MARKERS[look.marker], "markersize": size, "markerfacecolor": face}


def _stroke(look: Look) -> Any:
    return (0, DASHES[look.dash]) if DASHES[look.dash] else "-"


def _draw_lines(panel: Panel, data: LinesData, styles: Mapping[str, Look], figure: Any) -> list[Tip]:
    axis = figure.subplots()
    shown = [place(s) for s in data.sparsity] or [0.0]
    width = (max(shown) - min(shown)) or 1.0
    axis.set_xlim(min(shown) - 0.05 * width, max(shown) + 0.05 * width)
    tips = []
    for number, line in enumerate(panel.lines):
        aside = 0.0 if line.method in data.bold else 0.008 * width * (number - len(panel.lines) / 2)
        tips += _draw_line(axis, line, panel, data, styles[line.method], aside)
    if floor := {s: value for s, value in panel.floor.items() if s in data.sparsity}:
        axis.plot([place(s) for s in floor], list(floor.values()), **_FLOOR)
    _sparsity_axis(axis, data.sparsity)
    _value_axis(panel, axis.set_ylim)
    axis.grid(axis="y", color="0.9", linewidth=0.5)
    return tips


def _draw_line(axis: Any, line: Line, panel: Panel, data: LinesData, look: Look, aside: float) -> list[Tip]:
    """A method that has no sparsity of the others (the dense network) is a level across the panel."""
    color, bold = COLORS[look.color], line.method in data.bold
    x = [place(s) + aside for s in line.sparsity]
    stroke: dict[str, Any] = {"linestyle": _stroke(look), "linewidth": 1.5 if bold else 0.9, "zorder": 4 if bold else 3}
    if level := not set(line.sparsity) & set(data.sparsity):
        low, high = axis.get_xlim()
        x = [low + 0.02 * (high - low)]
        axis.axhline(line.mean[0], color=color, **stroke)
    if bold and len(x) > 1:
        axis.fill_between(x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
    else:  # intervals stand side by side, so that they don't overlap
        axis.vlines(x, line.low[: len(x)], line.high[: len(x)], color=color, linewidth=0.8, alpha=0.75)
    axis.plot(x, line.mean[: len(x)], **_marks(look), **stroke | ({"linestyle": "none"} if level else {}))
    return [Tip(axis, at, line.mean[i], tip(line, i, panel), (line.method, line.sparsity[i])) for i, at in enumerate(x)]


def _sparsity_axis(axis: Any, sparsities: Sequence[float]) -> None:
    """A tick per sparsity; where two would collide, the later one stays."""
    ends = place(max(sparsities, default=0.0)), place(min(sparsities, default=0.0))
    apart = 0.075 * max(ends[0] - ends[1], 0.1)
    labels: dict[float, str] = {}
    for sparsity in reversed(sparsities):
        if all(place(other) - place(sparsity) > apart for other in labels):
            labels[sparsity] = f"{100 * sparsity:.6g}"
    axis.set_xticks([place(s) for s in labels], list(labels.values()))
    axis.set_xticks([place(s) for s in sparsities], minor=True)
    axis.set_xlabel("sparsity (%)")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _value_axis(panel: Panel, set_limits: Callable[..., Any]) -> None:
    """From 0 where that is the best there is, and not far away."""
    low = min(end for line in panel.lines for end in line.low)
    high = max(end for line in panel.lines for end in line.high)
    if panel.better == "lower" and 0 <= low < high / 2:
        set_limits(0)


def _draw_rows(panel: Panel, sparsities: Sequence[float], figure: Any) -> list[Tip]:
    axis, styles = figure.subplots(), looks(line.method for line in panel.lines)
    names: list[str] = []
    heads, tips = [], []
    for sparsity in sparsities:
        found = [(line, line.sparsity.index(sparsity)) for line in panel.lines if sparsity in line.sparsity]
        if len(sparsities) > 1 and found:
            heads.append(len(names))
            names.append(f"{percent(sparsity)} sparse")
        if sparsity in panel.floor:
            axis.vlines(panel.floor[sparsity], len(names) - 0.5, len(names) + len(found) - 0.5, **_FLOOR)
        for line, i in found:
            y, look = len(names), styles[line.method]
            names.append(line.label if len(line.label) <= _LONGEST else line.label[: _LONGEST - 1] + "…")
            axis.hlines(y, line.low[i], line.high[i], color=COLORS[look.color], linewidth=0.9)
            axis.plot([line.mean[i]], [y], **_marks(look, 4.6), linestyle="none")
            tips.append(Tip(axis, line.mean[i], y, tip(line, i, panel), (line.method, sparsity)))
    axis.set_yticks(range(len(names)), names)
    for head in heads:
        axis.get_yticklabels()[head].set_fontweight("bold")
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    _value_axis(panel, axis.set_xlim)
    axis.locator_params(axis="x", nbins=6)  # so that their numbers stand apart
    axis.grid(axis="x", color="0.9", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    return tips


def tip(line: Line, i: int, panel: Panel) -> str:
    shown = f"{{:.{panel.decimals}f}}"
    seeds = ", ".join(f"{seed}: {shown.format(value)}" for seed, value in line.seeds[i].items())
    told = [
        f"{panel.title}: {shown.format(line.mean[i])} ({panel.spread}: {shown.format(line.low[i])} to "
        f"{shown.format(line.high[i])})"
    ]
    if line.sparsity[i] in panel.floor:
        told.append(f"noise floor: {shown.format(panel.floor[line.sparsity[i]])}")
    numbers = "\n".join([*told, f"by seed: {seeds}"]).replace("-", "−")
    return f"{line.label}, {percent(line.sparsity[i])} sparse\n{numbers}"


def _draw_diagram(shown: Mapping[str, Any], color: str, figure: Any) -> list[Tip]:
    from matplotlib.colors import to_rgba

    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    draw_bars(upper, lower, shown, to_rgba(COLORS[color], 0.45) if color else "0.82")
    return [
        Tip(upper, (bar["low"] + bar["high"]) / 2, bar["accuracy"], _bin_tip(bar), column=True) for bar in shown["bars"]
    ]


def _bin_tip(bar: Mapping[str, Any]) -> str:
    gap = bar["confidence"] - bar["accuracy"]
    return (
        f"confidence {100 * bar['low']:.0f} to {100 * bar['high']:.0f} %: {bar['count']:,} samples\n"
        f"mean confidence {percent(bar['confidence'], 1)}\n"
        f"accuracy {percent(bar['accuracy'], 1)} (95 % interval: {100 * bar['accuracy_low']:.1f} to "
        f"{100 * bar['accuracy_high']:.1f} %)\n{abs(100 * gap):.1f} points {'over' if gap > 0 else 'under'}-confident"
    )


def plot_polygons(data: PolygonsData, path: Path) -> None:
    """As the paper draws them: the smaller polygon has the lower ECE; the axes go from 0 in the middle."""

    def draw(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots(1, len(data.panels), subplot_kw={"projection": "polar"}, squeeze=False)[0]
        top = 1.08 * max(max(panel.cigl.mean + panel.other.mean) for panel in data.panels)
        for panel, axis in zip(data.panels, axes, strict=True):
            corners = len(panel.sparsity)
            angles = [2 * math.pi * i / corners for i in range(corners)]
            axis.set_theta_zero_location("N")
            axis.set_theta_direction(-1)
            handles = []
            for line, method in ((panel.other, "rigl"), (panel.cigl, "cigl")):
                look, values = looks([method])[method], line.mean
                axis.plot([*angles, angles[0]], [*values, values[0]], **_marks(look, 3.2), linewidth=1.2)
                axis.fill(angles, values, color=COLORS[look.color], alpha=0.12)
                handles.append(_sample(line.label, **_marks(look)))
            axis.set_xticks(angles, [percent(s) for s in panel.sparsity], fontsize=_SMALL)
            axis.set_ylim(0, top)
            axis.yaxis.set_major_locator(MaxNLocator(4, prune="lower"))
            axis.set_rlabel_position(180 / corners)
            axis.tick_params(axis="x", pad=0)
            axis.tick_params(axis="y", labelsize=6, colors="0.35")
            axis.grid(color="0.88", linewidth=0.5)
            axis.spines["polar"].set_color("0.8")
            where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
            axis.legend(handles=handles, **where, frameon=False, fontsize=_SMALL)
        figure.subplots_adjust(wspace=0.5)

    save_figure(draw, path, (2.35 * len(data.panels), 2.6))
