"""What there is to see in a figure, in sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from cigl.report.comparisons import change, relative
from cigl.report.evidence import Evidence
from cigl.report.figure_data import LinesData, MasksData, PolygonsData, ReliabilityData
from cigl.report.metrics import ACCURACY, ECE
from cigl.report.recognise import of_kind
from cigl.report.statistics import OverSeeds, difference
from cigl.report.text import percent, percents, signed, span

_INTERVALS = "Bands and bars are 95 % intervals over seeds and test points."


def of_lines(evidence: Evidence, setting: str, data: LinesData, *, scaled: bool = False) -> str:
    compared = [against_reference(evidence, setting, method, scaled) for method in of_kind(evidence.study, "cigl")]
    return " ".join(part for part in [*compared, lowest(data), _INTERVALS] if part)


def of_bars(evidence: Evidence, setting: str, data: LinesData) -> str:
    methods = [line.method for line in data.panels[0].lines if line.method != evidence.study.reference]
    parts = [against_reference(evidence, setting, method) for method in methods]
    return " ".join(part for part in [*parts, lowest(data), "Bars are 95 % intervals."] if part)


def against_reference(evidence: Evidence, setting: str, method: str, scaled: bool = False) -> str:
    """At how many sparsities a method's ECE is lower than the reference's, by how much, and at what accuracy."""
    reference = evidence.study.reference
    if method == reference:
        return ""
    found: dict[float, tuple[OverSeeds, OverSeeds, float]] = {}
    for sparsity in evidence.sparsities(setting, [method]):
        ece, accuracy = (change(evidence, setting, method, sparsity, name, scaled) for name in (ECE, ACCURACY))
        share = relative(evidence, setting, method, sparsity, ECE, scaled)
        if ece is not None and accuracy is not None and share is not None:
            found[sparsity] = (ece, accuracy, share)
    if not found:
        return ""
    lower = [s for s, (ece, _, _) in found.items() if _is_lower(ece)]
    sure = [s for s, (ece, _, _) in found.items() if _surely_lower(ece)]
    worse = [s for s, (ece, _, _) in found.items() if _surely_higher(ece)]
    theirs = evidence.study.label(reference)
    text = f"{evidence.study.label(method)}'s ECE is lower than {theirs}'s at {_of(lower, found)}"
    if lower:
        text += f", by {span([-100 * found[s][2] for s in lower], '{:.0f}')} %"
        text += f" (the interval of the difference excludes 0 at {len(sure)})"
    if worse:
        text += f"; higher at {percents(worse)}, the interval excluding 0"
    gains = [100 * accuracy.value for _, accuracy, _ in found.values()]
    return f"{text}; accuracy differs by {span(gains, '{:+.1f}')} points."


def lowest(data: LinesData) -> str:
    """Which method has the lowest ECE at each sparsity."""
    best: dict[float, tuple[float, str]] = {}
    lines = data.panels[0].lines
    for line in lines:
        for sparsity, value in zip(line.sparsity, line.mean, strict=True):
            best[sparsity] = min(best.get(sparsity, (value, line.label)), (value, line.label))
    counted = [s for s in best if sum(s in line.sparsity for line in lines) > 1]
    winners: dict[str, list[float]] = {}
    for sparsity in sorted(counted):
        winners.setdefault(best[sparsity][1], []).append(sparsity)
    said = "; ".join(f"{label} at {percents(places)}" for label, places in winners.items())
    return f"Lowest ECE: {said}." if said else ""


def of_turns(evidence: Evidence, setting: str, data: LinesData) -> str:
    """Where the ECE turns on the way from dense to sparse; a turn counts where the intervals of its ends part."""
    parts = []
    for line in data.panels[0].lines:
        if len(line.sparsity) < 3:
            continue
        ends = turning_points(line.mean, line.low, line.high)
        steps = [f"{line.mean[i]:.3f} at {percent(line.sparsity[i])}" for i in ends]
        turns = "no turn in between" if len(ends) == 2 else "a turn" if len(ends) == 3 else f"{len(ends) - 2} turns"
        parts.append(f"{line.label}'s ECE goes from {', to '.join(steps)} ({turns}).")
    return " ".join([*parts, "A turn counts where its 95 % interval is clear of both neighbours'. " + _INTERVALS])


def turning_points(mean: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[int]:
    """The first and last place, and between them the peaks and troughs that stand clear of each other.

    >>> turning_points([1, 5, 4.9, 2, 6], [0.9, 4.9, 4.8, 1.9, 5.9], [1.1, 5.1, 5.0, 2.1, 6.1])
    [0, 1, 3, 4]
    """
    found = [0]
    extreme = 0
    for i in range(1, len(mean)):
        rising = mean[extreme] > mean[found[-1]]
        if (mean[i] > mean[extreme]) == rising or extreme == found[-1]:
            extreme = i if abs(mean[i] - mean[found[-1]]) > abs(mean[extreme] - mean[found[-1]]) else extreme
        elif high[i] < low[extreme] or low[i] > high[extreme]:  # clear of the extreme: that was a turn
            if high[found[-1]] < low[extreme] or low[found[-1]] > high[extreme]:
                found.append(extreme)
            extreme = i
    return found if found[-1] == len(mean) - 1 else [*found, len(mean) - 1]


def of_polygons(evidence: Evidence, setting: str, data: PolygonsData) -> str:
    parts = []
    for panel in data.panels:
        found = []
        for sparsity in panel.sparsity:
            ours = evidence.numbers(setting, data.method, sparsity, ECE, False)
            theirs = evidence.numbers(setting, panel.method, sparsity, ECE, panel.scaled)
            found.append(difference(ours, theirs))
        known = [one for one in found if one is not None]
        lower, sure, worse = (
            [one for one in known if is_so(one)] for is_so in (_is_lower, _surely_lower, _surely_higher)
        )
        parts.append(
            f"{data.label}'s ECE is lower than that of {panel.label} at {_of(lower, known)}; the interval of the "
            f"difference is below 0 at {len(sure)}, above 0 at {len(worse)}."
        )
    return " ".join(parts)


def _is_lower(one: OverSeeds) -> bool:
    return one.value < 0


def _surely_lower(one: OverSeeds) -> bool:
    return one.high < 0


def _surely_higher(one: OverSeeds) -> bool:
    return one.low > 0


def of_reliability(evidence: Evidence, setting: str, data: ReliabilityData) -> str:
    parts = [
        f"{panel.title}: ECE {panel.ece:.3f}, confidence {'above' if panel.gap > 0 else 'below'} accuracy by "
        f"{abs(100 * panel.gap):.1f} points."
        for panel in data.panels
    ]
    return " ".join([*parts, "Hatched: the gap between confidence and accuracy in each bin."])


def of_masks(evidence: Evidence, setting: str, data: MasksData) -> str:
    parts = []
    for line in data.lines:
        drops = [f"{signed(-drop, 2)} at {percent(s)}" for s, drop in zip(line.sparsity, line.drop.mean, strict=True)]
        parts.append(f"{line.label}: under random masks accuracy changes by {', '.join(drops)} (points).")
    return " ".join([*parts, "Bars are the standard deviation over seeds."])


def _of(places: Sized, all_places: Sized) -> str:
    number = len(all_places)
    return f"{len(places)} of {number} sparsit{'y' if number == 1 else 'ies'}"
