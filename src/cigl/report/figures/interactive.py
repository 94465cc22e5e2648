"""A chart on the page: HTML with SVG inside that follows the colour scheme, fits a phone, and whose points tell their
numbers to a mouse, a finger or the arrow keys (assets/charts.js).

Every panel is an SVG of its own, so that panels stand side by side where there is room, and otherwise one below the
other. Colours become the page's own: those of lines are variables, greys lie between its ink and its background.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from operator import methodcaller
from typing import Any
from xml.etree import ElementTree

from cigl.calibrate.reports.diagram import new_figure
from cigl.report.figures.drawing import WIDTH, Chart, Drawing, Tip
from cigl.report.figures.styles import COLORS

_POINTS = 72  # per inch: the unit of the SVGs
_SAMPLE = (25 / _POINTS, 10 / _POINTS)  # inches
_COLOR = re.compile("#[0-9a-f]{6}")
_NAMED = {color.lower(): f"var(--{name})" for name, color in COLORS.items()}


@dataclass(frozen=True)
class At:
    """Where a figure stands on the page: the start of its ids, and the link to the runs behind a point."""

    name: str
    runs: Callable[[str, float], str] = lambda method, sparsity: ""


def interactive(chart: Chart, at: At) -> str:
    """The panels, and below them what their lines are."""
    parts = []
    for number, panel in enumerate(chart.panels):
        name = escape(f"{at.name}--panel-{number}")
        aside = f' <span class="aside">{escape(panel.aside)}</span>' if panel.aside else ""
        parts.append(
            f'<div class="panel"><p class="panel-title" id="{name}">{escape(panel.title)}{aside}</p>'
            f"{_panel(panel, name, at)}</div>"
        )
    return f'<div class="chart"><div class="panels">{"".join(parts)}</div>{_legend(chart, at)}</div>'


def _panel(panel: Drawing, name: str, at: At) -> str:
    tips: list[Tip] = []
    root = _svg(lambda figure: tips.extend(panel.draw(figure)), (WIDTH, panel.height), name)
    root.attrib |= {"class": "plot", "role": "group", "tabindex": "0", "aria-labelledby": name}
    for tip in tips:
        x, y = tip.axis.transData.transform((tip.x, tip.y))
        place = {"x": f"{x:.5g}", "y": f"{panel.height * _POINTS - y:.5g}"}
        more = {"data-runs": at.runs(*tip.runs)} if tip.runs and at.runs(*tip.runs) else {}
        more |= {"data-column": ""} if tip.column else {}
        group = ElementTree.SubElement(
            root, "g", {"class": "point", **{f"data-{a}": v for a, v in place.items()}, **more}
        )
        ElementTree.SubElement(group, "title").text = tip.text  # what the browser shows where there is no script
        ElementTree.SubElement(group, "circle", {"r": "4.5", **{f"c{a}": v for a, v in place.items()}})
    return ElementTree.tostring(root, "unicode")


def _legend(chart: Chart, at: At) -> str:
    items = []
    for number, handle in enumerate(chart.handles()):
        root = _svg(methodcaller("add_artist", handle), _SAMPLE, f"{at.name}--key-{number}")
        root.attrib |= {"width": "40", "height": "16", "aria-hidden": "true", "class": "sample"}
        items.append(
            f"<li>{ElementTree.tostring(root, 'unicode')}<span>{escape(handle.get_label().strip())}</span></li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _svg(draw: Callable[[Any], Any], size: tuple[float, float], name: str) -> ElementTree.Element:
    """What is drawn, without what a file of its own would need, and in the page's colours."""
    with new_figure(size, {"svg.fonttype": "none", "svg.hashsalt": name}, dpi=_POINTS, layout="constrained") as figure:
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        given = {name.rpartition("}")[2]: value for name, value in element.items()}
        if element.tag == "g":  # nothing refers to groups
            given.pop("id", None)
        element.attrib.clear()
        element.attrib |= {
            name: _COLOR.sub(_variable, value) if name in ("style", "fill", "stroke") else value
            for name, value in given.items()
        }
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in ("metadata", "style")]:
            parent.remove(child)
    for attribute in ("version", "width", "height"):
        root.attrib.pop(attribute, None)
    return root


def _variable(color: re.Match[str]) -> str:
    """
    >>> [_COLOR.sub(_variable, color) for color in ("#0072b2", "#000000", "#cccccc")]
    ['var(--blue)', 'var(--ink)', 'color-mix(in srgb, var(--back) 80%, var(--ink))']
    """
    if color[0] in _NAMED:
        return _NAMED[color[0]]
    share = int(color[0][1:3], 16) / 255  # of white
    return f"color-mix(in srgb, var(--back) {100 * share:.3g}%, var(--ink))"
