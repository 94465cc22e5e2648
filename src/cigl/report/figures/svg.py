"""Pieces of SVG: elements, markers, scales and ticks. ``charts`` makes figures of them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cigl.report.figures.styles import DASHES, Look


def text(value: object) -> str:
    """What a user may have named stays text in HTML and SVG."""
    return html.escape(str(value), quote=True)


def element(tag: str, *inside: str, **attributes: object) -> str:
    """Underscores in names of attributes stand for hyphens, one at the end for nothing.

    >>> element("path", d="M0 0", stroke_width=1.50, class_="axis")
    '<path d="M0 0" stroke-width="1.5" class="axis"/>'
    """
    shown = {name.rstrip("_").replace("_", "-"): _attribute(value) for name, value in attributes.items()}
    given = "".join(f' {name}="{text(value)}"' for name, value in shown.items())
    return f"<{tag}{given}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{given}/>"


def _attribute(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def label(x: float, y: float, words: str, anchor: str = "middle", class_: str = "tick") -> str:
    return element("text", text(words), x=x, y=y, text_anchor=anchor, class_=class_)


def path(points: Iterable[tuple[float, float]], closed: bool = False) -> str:
    """
    >>> path([(0, 0), (1, 2.5)])
    'M0 0L1 2.5'
    """
    return "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points) + ("Z" if closed else "")


def _around(corners: int, *radii: float, start: float = 0.0) -> list[tuple[float, float]]:
    """Corners around (0, 0), clockwise from the top, at these radii in turn."""
    angles = (start + 2 * math.pi * i / corners for i in range(corners))
    return [
        (radii[i % len(radii)] * math.sin(angle), -radii[i % len(radii)] * math.cos(angle))
        for i, angle in enumerate(angles)
    ]


_PLUS = [(a, b) for a, b in ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1))]
_PLUS += [(-3, -1), (-1, -1)]
_SHAPES: dict[str, list[tuple[float, float]]] = {
    "square": _around(4, 1.2, start=math.pi / 4),
    "diamond": _around(4, 1.3),
    "up": _around(3, 1.35),
    "down": _around(3, 1.35, start=math.pi),
    "left": _around(3, 1.35, start=-math.pi / 2),
    "right": _around(3, 1.35, start=math.pi / 2),
    "plus": [(x / 2.6, y / 2.6) for x, y in _PLUS],
    "cross": [((x - y) / 3.2, (x + y) / 3.2) for x, y in _PLUS],
    "star": _around(10, 1.6, 0.65),
    "pentagon": _around(5, 1.25),
}


def marker(look: Look, x: float, y: float, size: float = 4.6) -> str:
    """Filled with the colour of its line, or with that of the page."""
    class_ = "mark" if look.filled else "mark open"
    if look.marker == "circle":
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    shape = [(x + size * dx, y + size * dy) for dx, dy in _SHAPES[look.marker]]
    return element("path", d=path(shape, closed=True), class_=class_)


def stroke(look: Look, points: Iterable[tuple[float, float]], width: float = 1.6) -> str:
    dashes = " ".join(f"{width * part:.3g}" for part in DASHES[look.dash])
    given = {"stroke_dasharray": dashes} if dashes else {}
    return element("path", d=path(points), class_="stroke", stroke_width=width, **given)


@dataclass(frozen=True)
class Scale:
    """From numbers to places, linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between the two, about as many as wanted.

    >>> ticks(0.0, 0.11)
    [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]
    """
    rough = (high - low) / wanted
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    unit = 10 ** math.floor(math.log10(rough))
    step = min((factor * unit for factor in (1, 2, 5, 10)), key=lambda one: abs(math.log(one / rough)))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def padded(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """An axis that holds all of them, with some room; from 0 where a length from 0 means something."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0, high + room) if from_zero else (low - room, high + room)
