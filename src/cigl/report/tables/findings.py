"""What a study found, in sentences made from its numbers: the page opens with them.

A lower ECE alone is no gain: every verdict weighs it with the accuracy and names the other scores that got worse, and
all of these numbers stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cigl.common.text import count, percent, percents, signed, span
from cigl.report.evidence.comparisons import Contrast, contrasts, sign
from cigl.report.evidence.figure_data import LinesData, Panel, Polygon, PolygonsData
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import ACCURACY, ECE, HEADLINE, lookup
from cigl.report.evidence.recognise import of_kind
from cigl.report.evidence.statistics import OverSeeds, difference


def of_lines(evidence: Evidence, setting: str, data: LinesData) -> list[str]:
    """CigL against the reference; where there is no CigL, all methods; where nothing compares, the numbers."""
    study = evidence.study
    methods = of_kind(study, "cigl") or [line.method for line in data.panels[0].lines]
    return _compared(evidence, setting, methods) or _levels(data)


def of_parts(evidence: Evidence, setting: str, data: LinesData) -> list[str]:
    """Every method that is shown, against the reference."""
    return _compared(evidence, setting, [line.method for line in data.panels[0].lines]) or _levels(data)


def _compared(evidence: Evidence, setting: str, methods: Sequence[str]) -> list[str]:
    return list(filter(None, (against_reference(evidence, setting, method) for method in methods)))


def against_reference(evidence: Evidence, setting: str, method: str) -> str:
    """The verdict at each sparsity; sparsities of one verdict are named together."""
    label, reference = evidence.study.label(method), evidence.study.label(evidence.study.reference)
    groups: dict[tuple[str, tuple[str, ...]], list[Contrast]] = {}
    for one in contrasts(evidence, setting, method):
        if one.share is not None:
            groups.setdefault((one.verdict(reference), one.worse), []).append(one)
    clauses: list[str] = []
    for (verdict, worse), found in groups.items():
        ece = span([100 * (one.share or 0.0) for one in found], "{:+.0f}")
        accuracy = span([100 * one.changes[ACCURACY].value for one in found], "{:+.1f}")
        seeds = _seeds([one.changes[ECE] for one in found])
        numbers = [f"ECE {ece} %", f"accuracy {accuracy} points"]
        for name in found[0].scores:
            values = [one.changes[name].value for one in found if name in one.changes]
            numbers.append(f"{lookup(name).title} {span(values, '{:+.3f}')}")
        who = "it" if clauses else label
        but = f", but its {' and '.join(worse)} {'is' if len(worse) == 1 else 'are'} worse" if worse else ""
        clauses.append(
            f"at {percents([one.sparsity for one in found])} sparsity {who} is {verdict}{but} ({', '.join(numbers)}; "
            f"{seeds})"
        )
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def of_scaled(evidence: Evidence, setting: str, data: LinesData) -> list[str]:
    """The same after temperature scaling, which changes no accuracy; in one sentence per method."""
    study, sentences = evidence.study, []
    for method in of_kind(study, "cigl") or list(study.methods):
        if found := contrasts(evidence, setting, method, scaled=True):
            who, than = study.label(method), study.label(study.reference)
            said = _significant(who, than, *([one.changes[name] for one in found] for name in HEADLINE))
            sentences.append(f"After temperature scaling of both, {said}.")
    return sentences or _levels(data)


def of_calibrators(evidence: Evidence, setting: str, data: PolygonsData) -> list[str]:
    sentences = []
    for panel in data.panels:
        known = [_between(evidence, setting, panel, metric) for metric in HEADLINE]
        if all(known):
            sentences.append(_significant(panel.cigl.label, panel.other.label, *known) + ".")
    return sentences


def _between(evidence: Evidence, setting: str, panel: Polygon, metric: str) -> list[OverSeeds]:
    found = []
    for sparsity in panel.sparsity:
        ours = evidence.numbers(setting, panel.cigl.method, sparsity, metric, False)
        found.append(difference(ours, evidence.numbers(setting, panel.other.method, sparsity, metric, panel.scaled)))
    return [one for one in found if one is not None]


def _significant(who: str, than: str, ece: Sequence[OverSeeds], accuracy: Sequence[OverSeeds]) -> str:
    """At how many sparsities an ECE is lower or higher; with the difference in accuracy, which goes with it."""
    several = len(ece) > 1
    of = f"of {count(len(ece), 'sparsity', 'sparsities')}"
    numbers = {word: sum(sign(one) == wanted for one in ece) for word, wanted in (("lower", -1), ("higher", 1))}
    found = [
        f"significantly {word} than that of {than}" + (f" at {number} {of}" if several else "")
        for word, number in numbers.items()
        if number
    ]
    said = " and ".join(found) or f"not significantly different from that of {than}" + (
        f" at any {of}" if several else ""
    )
    points = span([100 * one.value for one in accuracy], "{:+.1f}")
    return f"{who}'s ECE is {said} (accuracy {points} points; {_seeds(ece)})"


def _seeds(found: Sequence[OverSeeds]) -> str:
    numbers = [one.seeds for one in found]
    return "1 seed, so for these networks only" if max(numbers) == 1 else f"{span(numbers, '{}')} seeds"


def of_turns(evidence: Evidence, setting: str, data: LinesData) -> list[str]:
    """Where the ECE turns on the way from dense to sparse."""
    parts = []
    for line in data.panels[0].lines:
        if len(line.sparsity) < 3:
            continue
        ends = turning_points(line.mean, line.low, line.high)
        steps = [f"{line.mean[i]:.3f} at {percent(line.sparsity[i])}" for i in ends]
        turns = "no turn in between" if len(ends) == 2 else count(len(ends) - 2, "turn")
        parts.append(f"{line.label}'s ECE goes from {', to '.join(steps)} sparsity ({turns}).")
    return parts or _levels(data)


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


def of_masks(evidence: Evidence, setting: str, data: LinesData) -> list[str]:
    parts = []
    for line in data.panels[1].lines:
        drops = [f"{signed(-drop, 2)} at {percent(s)}" for s, drop in zip(line.sparsity, line.mean, strict=True)]
        parts.append(f"{line.label}: under random masks accuracy changes by {', '.join(drops)} (points).")
    return parts


def _levels(data: LinesData) -> list[str]:
    """Where there is nothing to compare with: what was measured."""
    parts = []
    first, second = data.panels[:2]
    for line in first.lines:
        shown = [_range(panel, line.method) for panel in (first, second)]
        parts.append(f"{line.label}: {', '.join(filter(None, shown))}.")
    return parts


def _range(panel: Panel, method: str) -> str:
    values = [value for line in panel.lines if line.method == method for value in line.mean]
    return f"{panel.title} {span(values, f'{{:.{panel.decimals}f}}')}" if values else ""
