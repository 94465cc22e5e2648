"""A reliability diagram for the page; ``calibrate.diagram`` prepares what it shows, and draws it for documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cigl.calibrate import Report
from cigl.calibrate.reports.diagram import prepare_reliability_diagram
from cigl.common.text import percent
from cigl.report.evidence.figure_data import ReliabilityData
from cigl.report.figures.charts import WIDTH, At, panels, point, svg
from cigl.report.figures.svg import Scale, element, label, path, ticks

_LEFT, _RIGHT = 46.0, WIDTH - 14.0
_HIGH, _LOW = 24.0, 258.0  # of the diagram
_FIRST, _LAST, _HEIGHT = 272.0, 326.0, 368.0  # of the histogram below it


def reliability(data: ReliabilityData, at: At) -> str:
    return diagrams({panel.title: Report.from_json(panel.report) for panel in data.panels}, at)


def diagrams(reports: Mapping[str, Report], at: At) -> str:
    """One per named report: the accuracy per bin of confidence, and hatched how far confidence is away from it."""
    drawn = []
    for number, (title, report) in enumerate(reports.items()):
        shown = prepare_reliability_diagram(report)
        ece = report.ece
        aside = (
            f"ECE {percent(ece, 1)} [{100 * ece.low:.1f}, {100 * ece.high:.1f}], accuracy {percent(report.accuracy, 1)}"
        )
        drawn.append((title, aside, _diagram(shown, f"{at.name}--hatch-{number}")))
    return panels(drawn, at)


def _diagram(shown: Mapping[str, Any], hatch: str) -> str:
    across, up = Scale(0, 1, _LEFT, _RIGHT), Scale(0, 1, _LOW, _HIGH)
    most = max(bar["count"] for bar in shown["bars"])
    count = Scale(0, most, _LAST, _FIRST)
    parts = [_hatching(hatch)]
    for value in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x, y = across(value), up(value)
        parts.append(element("path", d=path([(_LEFT, y), (_RIGHT, y)]), class_="grid"))
        parts.append(
            label(_LEFT - 6, y + 4.5, f"{100 * value:.0f}", "end") + label(x, _LAST + 18, f"{100 * value:.0f}")
        )
    parts += [_bin(bar, across, up, count, hatch) for bar in shown["bars"]]
    parts.append(element("path", d=path([(_LEFT, _LOW), (_RIGHT, _HIGH)]), class_="perfect"))
    for y in (_LOW, _LAST):
        parts.append(element("path", d=path([(_LEFT, y), (_RIGHT, y)]), class_="axis"))
    tick = ticks(0, most, 2)[-1]
    parts.append(label(_LEFT - 6, count(tick) + 4.5, f"{tick:,.0f}", "end"))
    names = ((_HIGH - 12, "accuracy (%)"), (_FIRST + 9, "samples"))
    parts += [label(_LEFT + 4, y, name, "start") for y, name in names]
    parts.append(label((_LEFT + _RIGHT) / 2, _HEIGHT - 8, "confidence (%)"))
    return svg(*parts, height=_HEIGHT)


def _bin(bar: Mapping[str, Any], across: Scale, up: Scale, count: Scale, hatch: str) -> str:
    left, width = across(bar["low"]) + 0.5, across(bar["high"]) - across(bar["low"]) - 1
    accuracy, confidence, x = up(bar["accuracy"]), up(bar["confidence"]), across((bar["low"] + bar["high"]) / 2)
    top, deep = min(accuracy, confidence), abs(accuracy - confidence)
    gap = bar["confidence"] - bar["accuracy"]
    box = {"x": left, "width": max(width, 0.5)}
    tip = (
        f"confidence {100 * bar['low']:.0f} to {100 * bar['high']:.0f} %: {bar['count']:,} samples\n"
        f"mean confidence {percent(bar['confidence'], 1)}\n"
        f"accuracy {percent(bar['accuracy'], 1)} (95 % interval: {100 * bar['accuracy_low']:.1f} to "
        f"{100 * bar['accuracy_high']:.1f} %)\n{abs(100 * gap):.1f} points {'over' if gap > 0 else 'under'}-confident"
    )
    ends = [(x, up(bar["accuracy_low"])), (x, up(bar["accuracy_high"]))]
    return point(
        tip,
        element("rect", **box, y=accuracy, height=_LOW - accuracy, class_="bar"),
        element("rect", **box, y=top, height=deep, class_="gap", fill=f"url(#{hatch})"),
        element("path", d=path(ends), class_="whisker"),
        element("circle", cx=x, cy=accuracy, r=2.6, class_="mark"),
        element("rect", **box, y=count(bar["count"]), height=_LAST - count(bar["count"]), class_="bar count"),
        x=x,
        y=accuracy,
    )


def _hatching(name: str) -> str:
    lines = element("path", d="M0 0V6", class_="hatch")
    size = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return element("defs", element("pattern", lines, id=name, **size))
