"""How a figure is to be read, below it; what there is to see in it, ``findings`` says."""

from __future__ import annotations

from collections.abc import Sequence

from cigl.common.text import percents, span
from cigl.report.evidence.figure_data import Line, LinesData, ReliabilityData

INTERVALS = "Bands and bars are 95 % intervals over seeds and test points."
POINTS = "Points are means over seeds, with their 95 % intervals."
SCALED = f"Temperature scaling changes no prediction, so the accuracy is as without it. {INTERVALS}"
TURNS = f"A turn counts where its 95 % interval is clear of both neighbours'. {INTERVALS}"
POLYGONS = (
    "“Significantly” means that the 95 % interval of the paired difference excludes 0. On the page: a panel per "
    "calibrator, with 95 % intervals; in the files: polygons from 0 in the middle, the smaller the better."
)
MASKS = "Bars are the standard deviation over seeds."


def lowest(data: LinesData, *, note: str = INTERVALS) -> str:
    """Which method has the lowest ECE at each sparsity, and how far its accuracy is from the highest there."""
    best: dict[float, tuple[float, str, str]] = {}
    lines, accuracies = data.panels[0].lines, data.panels[1]
    for line in lines:
        for sparsity, value in zip(line.sparsity, line.mean, strict=True):
            one = (value, line.method, line.label)
            best[sparsity] = min(best.get(sparsity, one), one)
    counted = [s for s in best if sum(s in line.sparsity for line in lines) > 1]
    winners: dict[tuple[str, str], list[float]] = {}
    for sparsity in sorted(counted):
        winners.setdefault(best[sparsity][1:], []).append(sparsity)
    said = []
    for (method, label), places in winners.items():
        there = [dict(_at(accuracies.lines, sparsity)) for sparsity in places]
        below = [max(values.values()) - values[method] for values in there if method in values]
        far = f"accuracy {span(below, '{:.1f}')} points below the highest" if any(below) else "highest accuracy too"
        said.append(f"{label} at {percents(places)} ({far})")
    return f"Lowest ECE: {'; '.join(said)}. {note}" if said else note


def _at(lines: Sequence[Line], sparsity: float) -> list[tuple[str, float]]:
    return [(line.method, line.mean[line.sparsity.index(sparsity)]) for line in lines if sparsity in line.sparsity]


def of_reliability(data: ReliabilityData) -> str:
    parts = [
        f"{panel.title}: ECE {panel.ece:.3f}, confidence {'above' if panel.gap > 0 else 'below'} accuracy by "
        f"{abs(100 * panel.gap):.1f} points."
        for panel in data.panels
    ]
    return " ".join([*parts, "Hatched: the gap between confidence and accuracy in each bin."])
