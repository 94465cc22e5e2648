"""What figures show, as plain data, which ``figures`` prepares and draws; ``findings`` puts it into words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Numbers = tuple[float, ...]
INTERVAL = "95 % interval"


def place(sparsity: float) -> float:
    """On the axis: by orders of magnitude of the density, so that 90 and 99 % are as far apart as 99 and 99.9 %.

    >>> round(place(0.99), 6), place(0.0)
    (2.0, 0.0)
    """
    return -math.log10(1 - sparsity) + 0.0


@dataclass(frozen=True)
class Line:
    """A method's means over sparsities, with the ends of their intervals and, at each, the values of its seeds."""

    method: str
    label: str
    sparsity: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers
    seeds: tuple[Mapping[int, float], ...]


@dataclass(frozen=True)
class Panel:
    """The lines of one metric; ``floor`` is the noise floor by sparsity, where the metric has one."""

    title: str
    lines: tuple[Line, ...]
    floor: Mapping[float, float]
    better: str = "lower"  # or "higher"
    decimals: int = 4
    spread: str = INTERVAL  # what the ends are


@dataclass(frozen=True)
class LinesData:
    """Drawn as lines, or as points at ``sparsity``. The reference and the study's CigL are drawn bold."""

    panels: tuple[Panel, ...]
    sparsity: Numbers
    bold: tuple[str, ...]


@dataclass(frozen=True)
class Polygon:
    """CigL's ECE and that of RigL with one calibrator, at the sparsities that both have."""

    title: str
    cigl: Line
    other: Line
    scaled: bool  # whether the calibrator is temperature scaling

    @property
    def sparsity(self) -> Numbers:
        return self.cigl.sparsity


@dataclass(frozen=True)
class PolygonsData:
    panels: tuple[Polygon, ...]


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram: the report that it is drawn from, and what the caption says of it."""

    title: str
    report: str
    ece: float
    gap: float


@dataclass(frozen=True)
class ReliabilityData:
    panels: tuple[Diagram, ...]
