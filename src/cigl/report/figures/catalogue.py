"""The figures: which studies have them, and what they show.

``drawing`` draws it, ``interactive`` puts it on the page; ``findings`` and ``captions`` put it into words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cigl.common.text import percent
from cigl.report.evidence.comparisons import Spread, masked_accuracies
from cigl.report.evidence.figure_data import (
    Diagram,
    Line,
    LinesData,
    Panel,
    Polygon,
    PolygonsData,
    ReliabilityData,
)
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import ACCURACY, ECE, GAP, NLL, heading, lookup
from cigl.report.evidence.recognise import (
    compares_methods,
    fits_temperatures,
    from_dense_to_empty,
    kinds,
    of_kind,
    sparsities,
)
from cigl.report.evidence.statistics import mean
from cigl.report.figures import captions, drawing
from cigl.report.figures.drawing import Chart
from cigl.report.tables import findings
from cigl.study.grid import Study

SUFFIXES = (".svg", ".png")
# The paper's calibrators, each with the kind of its runs and whether these are temperature-scaled.
_CALIBRATORS = {
    "mixup": ("rigl-mixup", False),
    "temperature scaling": ("rigl", True),
    "label smoothing": ("rigl-ls", False),
}
_PARTS = ("rigl", "rigl-wdp", "cigl-no-rm", "cigl-no-wma", "cigl")  # CigL, and what is left without its parts
_COMPARED = 0.95  # the sparsity whose reliability diagram stands beside the dense one's


def prepare_lines(evidence: Evidence, setting: str, *, scaled: bool = False) -> LinesData:
    """Per panel a line for each method: sparsities, means and interval ends; for the ECE the noise floor too."""
    panels = tuple(_panel(evidence, setting, metric, scaled) for metric in (ECE, NLL if scaled else ACCURACY))
    several = {s for panel in panels for line in panel.lines for s in line.sparsity if len(line.sparsity) > 1}
    cigl = of_kind(evidence.study, "cigl")
    bold = (evidence.study.reference, *(cigl if len(cigl) == 1 else ()))
    return LinesData(panels, tuple(sorted(several)), bold)


def _panel(evidence: Evidence, setting: str, metric: str, scaled: bool) -> Panel:
    methods = evidence.methods(setting)
    found = (line(evidence, setting, method, metric, scaled) for method in methods)
    lines = tuple(one for one in found if one.sparsity)
    floors: dict[float, list[float]] = {}
    for method in methods:
        for sparsity in evidence.sparsities(setting, [method]):
            if numbers := evidence.numbers(setting, method, sparsity, metric, scaled):
                floors.setdefault(sparsity, []).append(mean(numbers).floor)
    floor = {s: sum(values) / len(values) for s, values in sorted(floors.items()) if any(values)}
    shown = lookup(metric)
    return Panel(heading(metric), lines, floor, shown.better, shown.decimals)


def line(
    evidence: Evidence, setting: str, method: str, metric: str, scaled: bool, at: Collection[float] | None = None
) -> Line:
    """One method at all of its sparsities, or at some of them."""
    scale = lookup(metric).scale
    found = {s: evidence.numbers(setting, method, s, metric, scaled) for s in evidence.sparsities(setting, [method])}
    kept = {s: numbers for s, numbers in found.items() if numbers and (at is None or s in at)}
    points = [mean(numbers) for numbers in kept.values()]
    means, lows, highs = (tuple(scale * getattr(one, part) for one in points) for part in ("value", "low", "high"))
    seeds = tuple({seed: scale * one.value for seed, one in numbers.items()} for numbers in kept.values())
    return Line(method, evidence.study.label(method), tuple(kept), means, lows, highs, seeds)


def prepare_points(evidence: Evidence, setting: str, *, parts: Collection[str] = (), scaled: bool = False) -> LinesData:
    """As lines, at every sparsity; or for methods of some kinds alone, at the sparsities of the reference."""
    data = prepare_lines(evidence, setting, scaled=scaled)
    if not parts:
        every = {s for panel in data.panels for one in panel.lines for s in one.sparsity}
        return replace(data, sparsity=tuple(sorted(every)))
    wanted = set(evidence.sparsities(setting, [evidence.study.reference]))
    methods = [method for kind in parts for method in of_kind(evidence.study, kind)]
    panels = []
    for panel in data.panels:
        lines = (one for one in panel.lines if one.method in methods and wanted & set(one.sparsity))
        panels.append(replace(panel, lines=tuple(lines)))
    return replace(data, panels=tuple(panels), sparsity=tuple(sorted(wanted)))


def prepare_polygons(evidence: Evidence, setting: str) -> PolygonsData:
    """Per calibrator the ECE of CigL and of RigL with that calibrator, at the sparsities that both have."""
    study, panels = evidence.study, []
    cigl = next(iter(of_kind(study, "cigl")), "")
    rigl = next(iter(of_kind(study, "rigl")), "RigL")
    ours = line(evidence, setting, cigl, ECE, False)
    for name, (kind, scaled) in _CALIBRATORS.items():
        for method in of_kind(study, kind)[:1]:
            theirs = line(evidence, setting, method, ECE, scaled, ours.sparsity)
            if len(theirs.sparsity) >= 3:  # fewer corners are no polygon
                both = line(evidence, setting, cigl, ECE, False, theirs.sparsity)
                other = replace(theirs, label=f"{study.label(rigl)} + {name}")
                panels.append(Polygon(name, both, other, scaled))
    return PolygonsData(tuple(panels))


def prepare_masks(evidence: Evidence, setting: str) -> LinesData:
    """The accuracy of W and of Z*W by sparsity, in percent, and the drop from one to the other."""
    accuracy, drops = [], []
    for method in evidence.methods(setting):
        found = {s: masked_accuracies(evidence, setting, method, s) for s in evidence.sparsities(setting, [method])}
        points = {sparsity: parts for sparsity, parts in found.items() if parts is not None}
        if points:
            label = evidence.study.label(method)
            names = {method: f"{label}, W", f"{method} Z*W": f"{label}, Z*W", f"{method} drop": label}
            one, other, drop = (
                _spread(name, title, {s: parts[number] for s, parts in points.items()})
                for number, (name, title) in enumerate(names.items())
            )
            accuracy += [one, other]
            drops.append(replace(drop, method=method))
    shown = [("Accuracy (%)", accuracy, "higher"), ("Drop from W to Z*W (points)", drops, "lower")]
    spread = "± 1 standard deviation over seeds"
    panels = tuple(Panel(title, tuple(lines), {}, better, 2, spread) for title, lines, better in shown)
    return LinesData(panels, tuple(sorted({s for one in accuracy for s in one.sparsity})), ())


def _spread(name: str, label: str, spreads: Mapping[float, Spread]) -> Line:
    """In percent, with one standard deviation over seeds to either side."""
    low, mean, high = (
        tuple(100 * (one.value + side * (one.seed_sd or 0.0)) for one in spreads.values()) for side in (-1, 0, 1)
    )
    seeds = tuple({seed: 100 * value for seed, value in one.seeds.items()} for one in spreads.values())
    return Line(name, label, tuple(spreads), mean, low, high, seeds)


def prepare_reliability(evidence: Evidence, setting: str) -> ReliabilityData:
    """Reports of the first seed, dense and at 95 %, of the reference or else the first method that has both."""
    methods = dict.fromkeys([evidence.study.reference, *evidence.methods(setting)])
    tested = {method: evidence.sparsities(setting, [method]) for method in methods}
    both = [method for method in methods if _COMPARED in tested[method] and min(tested[method]) < _COMPARED]
    places = [(both[0], min(tested[both[0]])), (both[0], _COMPARED)] if both else []
    dense = [method for method in of_kind(evidence.study, "dense") if tested.get(method)]
    if dense and places and places[0][1] > 0:
        places[0] = (dense[0], min(tested[dense[0]]))
    panels = []
    for method, sparsity in places:
        run = next(iter(evidence.group(setting, method, sparsity).values()))
        title = f"{evidence.study.label(method)}, {percent(sparsity)} sparse, seed {run.cell.seed}"
        numbers = run.numbers[False]
        panels.append(Diagram(title, str(run.path / run.report), numbers[ECE].value, numbers[GAP].value))
    return ReliabilityData(tuple(panels))


@dataclass(frozen=True)
class Figure:
    """What it shows as plain data, what there is to see, and how it is drawn: on the page, and in files."""

    kind: str  # of FIGURES
    title: str
    setting: str
    finding: tuple[str, ...]  # what there is to see, a sentence each
    note: str  # how it is to be read
    data: Any
    chart: Chart
    plot: Callable[[Path], None]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.setting}"

    @property
    def caption(self) -> str:
        return " ".join(filter(None, [*self.finding, self.note]))


@dataclass(frozen=True)
class FigureKind:
    """One kind of figure: which studies have it, what it shows, how it is drawn, and what is to be seen."""

    title: str
    suits: Callable[[Study], bool]
    prepare: Callable[[Evidence, str], Any]
    chart: Callable[[Any], Chart]
    note: str | Callable[[Any], str]
    finding: Callable[[Evidence, str, Any], list[str]] = lambda evidence, setting, data: []
    plot: Callable[[Any, Path], None] | None = None  # where documents have another form of it than the page

    def make(self, kind: str, evidence: Evidence, setting: str) -> Figure | None:
        """None where finished runs have nothing to show yet."""
        data = self.prepare(evidence, setting)
        if not data.panels or (isinstance(data, LinesData) and not all(panel.lines for panel in data.panels)):
            return None
        title = f"{self.title}, {evidence.title(setting)}"
        finding, chart = tuple(self.finding(evidence, setting, data)), self.chart(data)
        plot = partial(self.plot, data) if self.plot else chart.plot
        note = self.note if isinstance(self.note, str) else self.note(data)
        return Figure(kind, title, setting, finding, note, data, chart, plot)


def _has_calibrators(study: Study) -> bool:
    found = set(kinds(study).values())
    return "cigl" in found and bool(found & {"rigl-mixup", "rigl-ls"})


def _takes_cigl_apart(study: Study) -> bool:
    found = set(kinds(study).values())
    return "cigl" in found and bool(found & {"cigl-no-rm", "cigl-no-wma"})


def _compares(study: Study, *, few: bool, scaled: bool = False) -> bool:
    """One or two sparsities make points, more make lines."""
    is_so = compares_methods(study) and not from_dense_to_empty(study) and (len(sparsities(study)) < 3) == few
    return is_so and (not scaled or fits_temperatures(study))


# In the order of the page: the first that a study has stands at its top.
FIGURES: dict[str, FigureKind] = {
    "masks": FigureKind(
        "Accuracy of W and of Z*W", lambda study: study.masks > 0, prepare_masks, drawing.lines, captions.MASKS,
        findings.of_masks,
    ),
    "polygons": FigureKind(
        "ECE of CigL and of calibrators", _has_calibrators, prepare_polygons, drawing.polygons, captions.POLYGONS,
        findings.of_calibrators, drawing.plot_polygons,
    ),
    "ablation": FigureKind(
        "ECE and accuracy of CigL without its parts", _takes_cigl_apart, partial(prepare_points, parts=_PARTS),
        drawing.rows, partial(captions.lowest, note=captions.POINTS), findings.of_parts,
    ),
    "double-descent": FigureKind(
        "ECE and accuracy from dense to nearly empty", from_dense_to_empty, prepare_lines, drawing.lines,
        captions.TURNS, findings.of_turns,
    ),
    "reliability": FigureKind(
        "Reliability diagrams", from_dense_to_empty, prepare_reliability, drawing.reliability, captions.of_reliability,
    ),
    "sparsity": FigureKind(
        "ECE and accuracy by sparsity", partial(_compares, few=False), prepare_lines, drawing.lines, captions.lowest,
        findings.of_lines,
    ),
    "sparsity-temperature": FigureKind(
        "ECE and NLL by sparsity, after temperature scaling", partial(_compares, few=False, scaled=True),
        partial(prepare_lines, scaled=True), drawing.lines, captions.SCALED, findings.of_scaled,
    ),
    "points": FigureKind(
        "ECE and accuracy, method by method", partial(_compares, few=True), prepare_points, drawing.rows,
        partial(captions.lowest, note=captions.POINTS), findings.of_lines,
    ),
    "points-temperature": FigureKind(
        "ECE and NLL after temperature scaling", partial(_compares, few=True, scaled=True),
        partial(prepare_points, scaled=True), drawing.rows, captions.SCALED, findings.of_scaled,
    ),
}  # fmt: skip
# Lines need three sparsities: while a study has finished fewer, its points are drawn.
_AS_POINTS = {"sparsity": "points", "sparsity-temperature": "points-temperature", "double-descent": "points"}


def make_figures(evidence: Evidence, chosen: Collection[str] | None = None) -> list[Figure]:
    """Every figure of the study that its finished runs allow, setting by setting; or those chosen."""
    wanted = chosen_for(evidence.study) if chosen is None else chosen
    made = []
    for setting in evidence.settings:
        most = max(len(evidence.sparsities(setting, [method])) for method in evidence.methods(setting))
        names = wanted if most >= 3 or chosen is not None else [_AS_POINTS.get(name, name) for name in wanted]
        made += [FIGURES[name].make(name, evidence, setting) for name in dict.fromkeys(names)]
    return [figure for figure in made if figure is not None]


def chosen_for(study: Study) -> list[str]:
    """
    >>> from cigl.study.catalogue import study
    >>> chosen_for(study("double-descent"))
    ['double-descent', 'reliability']
    """
    return [name for name, kind in FIGURES.items() if kind.suits(study)]
