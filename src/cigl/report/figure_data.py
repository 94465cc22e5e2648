"""What figures show, as plain data: ``figures`` prepares it, ``drawing`` draws it, ``captions`` puts it into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """A method's means over sparsities, with the ends of their intervals."""

    method: str
    label: str
    sparsity: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class Panel:
    """The lines of one metric; ``floor`` is the noise floor by sparsity, where the metric has one."""

    title: str
    lines: tuple[Line, ...]
    floor: Mapping[float, float]


@dataclass(frozen=True)
class LinesData:
    """Drawn as lines, or as bars at ``sparsity``. The reference and the study's CigL are drawn bold."""

    panels: tuple[Panel, ...]
    sparsity: Numbers
    bold: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not all(panel.lines for panel in self.panels)


@dataclass(frozen=True)
class Polygon:
    """CigL's ECE and that of RigL with one calibrator, at the sparsities that both have."""

    title: str
    sparsity: Numbers
    cigl: Numbers
    other: Numbers
    label: str  # of the other
    method: str
    scaled: bool


@dataclass(frozen=True)
class PolygonsData:
    panels: tuple[Polygon, ...]
    method: str
    label: str

    @property
    def is_empty(self) -> bool:
        return not self.panels


@dataclass(frozen=True)
class WithSd:
    """Means over seeds, in percent, with their standard deviations."""

    mean: Numbers
    sd: Numbers


@dataclass(frozen=True)
class MaskLine:
    """A method's accuracy with all of its weights and under random masks, and the drop from one to the other."""

    method: str
    label: str
    sparsity: Numbers
    whole: WithSd
    masked: WithSd
    drop: WithSd


@dataclass(frozen=True)
class MasksData:
    lines: tuple[MaskLine, ...]

    @property
    def is_empty(self) -> bool:
        return not self.lines


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

    @property
    def is_empty(self) -> bool:
        return not self.panels
