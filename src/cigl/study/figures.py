"""The figures of a study: ``prepare_...`` computes what is shown and returns plain data, ``drawing`` draws it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cigl.calibrate import Report, prepare_reliability_diagram, reliability_diagrams
from cigl.study import captions, drawing
from cigl.study.contents import Contents
from cigl.study.evidence import Evidence, Measured
from cigl.study.findings import SHOWN, masked_accuracies, percent, setting_title
from cigl.study.statistics import OverSeeds, mean

SUFFIXES = (".svg", ".png")
_CIGL = "cigl"
# The paper's calibrators, each under the name of its run and whether the run is temperature-scaled.
_CALIBRATORS = {"mixup": ("rigl-mixup", False), "temperature scaling": ("rigl", True), "label smoothing": ("rigl-ls", False)}  # fmt: skip # noqa: E501
_PARTS = ("rigl", "rigl-wdp", "cigl-no-rm", "cigl-no-wma", "cigl")  # CigL, and what is left without its parts
_COMPARED = 0.95  # the sparsity whose reliability diagram stands beside the dense one's


@dataclass(frozen=True)
class Figure:
    """What it shows as plain data, what there is to see, and how it is drawn."""

    name: str
    title: str
    caption: str
    data: dict[str, Any]
    plot: Callable[[Path], None]


def prepare_lines(evidence: Evidence, setting: str, *, scaled: bool = False) -> dict[str, Any]:
    """Per panel a line for each method: sparsities, means and interval ends; for the ECE the noise floor too."""
    panels = []
    for metric in ("ece_15", "nll" if scaled else "accuracy"):  # a temperature leaves accuracy as it is
        shown, lines = SHOWN[metric], []
        floors: dict[float, list[float]] = {}
        for method in evidence.methods(setting):
            points = {}
            for sparsity in evidence.sparsities(setting, [method]):
                if numbers := evidence.numbers(setting, method, sparsity, metric, scaled):
                    points[sparsity] = mean(numbers)
                    floors.setdefault(sparsity, []).append(points[sparsity].floor)
            if points:
                lines.append(_named(evidence, method) | _columns(points, shown.scale))
        floor = {s: sum(values) / len(values) for s, values in sorted(floors.items())} if metric == "ece_15" else {}
        panels.append({"title": shown.title, "lines": lines, "floor": floor})
    return {"panels": panels, "reference": evidence.study.reference}


def prepare_bars(evidence: Evidence, setting: str, *, methods: Collection[str] = ()) -> dict[str, Any]:
    """As lines, for these methods (or all) that run at the sparsities of the reference."""
    data = prepare_lines(evidence, setting)
    wanted = set(evidence.sparsities(setting, [evidence.study.reference]))
    for panel in data["panels"]:
        chosen = [line for line in panel["lines"] if not methods or line["method"] in methods]
        panel["lines"] = [line for line in chosen if wanted & set(line["sparsity"])]
        panel["sparsity"] = sorted(wanted)
    return data


def prepare_polygons(evidence: Evidence, setting: str) -> dict[str, Any]:
    """Per calibrator the ECE of CigL and of RigL with that calibrator, at the sparsities that both have."""
    panels = []
    for name, (method, scaled) in _CALIBRATORS.items():
        pairs = {}
        for sparsity in evidence.sparsities(setting, [_CIGL]):
            ours, theirs = polygon_numbers(evidence, setting, sparsity, method, scaled)
            if ours and theirs:
                pairs[sparsity] = (mean(ours).value, mean(theirs).value)
        if len(pairs) >= 3:  # fewer corners are no polygon
            label = f"{evidence.study.label('rigl')} + {name}"
            panels.append(
                {
                    "title": name, "sparsity": list(pairs), "cigl": [one for one, _ in pairs.values()],
                    "other": [other for _, other in pairs.values()], "label": label, "method": method, "scaled": scaled,
                }
            )  # fmt: skip
    return {"panels": panels, "label": evidence.study.label(_CIGL)}


def polygon_numbers(
    evidence: Evidence, setting: str, sparsity: float, method: str, scaled: bool
) -> tuple[Mapping[int, Measured], Mapping[int, Measured]]:
    ours = evidence.numbers(setting, _CIGL, sparsity, "ece_15", False)
    return ours, evidence.numbers(setting, method, sparsity, "ece_15", scaled)


def prepare_masks(evidence: Evidence, setting: str) -> dict[str, Any]:
    """Per method the accuracy of W and of Z*W, and the drop, by sparsity; in percent."""
    lines = []
    for method in evidence.methods(setting):
        found = {s: masked_accuracies(evidence, setting, method, s) for s in evidence.sparsities(setting, [method])}
        points = {sparsity: parts for sparsity, parts in found.items() if parts is not None}
        if points:
            line = _named(evidence, method) | {"sparsity": list(points)}
            for number, part in enumerate(("W", "Z*W", "drop")):
                line[part] = [100 * parts[number].value for parts in points.values()]
                line[f"{part} sd"] = [100 * (parts[number].seed_sd or 0.0) for parts in points.values()]
            lines.append(line)
    return {"lines": lines}


def prepare_reliability(evidence: Evidence, setting: str) -> dict[str, Any]:
    """Reports of the first seed, dense and at 95 %, of the reference or else the first method that has both."""
    methods = dict.fromkeys([evidence.study.reference, *evidence.methods(setting)])
    sparsities = {method: evidence.sparsities(setting, [method]) for method in methods}
    both = [method for method in methods if _COMPARED in sparsities[method] and min(sparsities[method]) < _COMPARED]
    places = [(both[0], min(sparsities[both[0]])), (both[0], _COMPARED)] if both else []
    if "dense" in methods and sparsities["dense"] and places and places[0][1] > 0:
        places[0] = ("dense", min(sparsities["dense"]))
    panels = {}
    for method, sparsity in places:
        run = next(iter(evidence.group(setting, method, sparsity).values()))
        title = f"{evidence.study.label(method)}, {percent(sparsity)} sparse, seed {run.cell.seed}"
        report = Report.from_json(run.path / run.report)
        panels[title] = prepare_reliability_diagram(report) | {
            "path": str(run.path / run.report), "ece": float(report.ece_15), "gap": float(report.gap)
        }  # fmt: skip
    return {"panels": panels}


def plot_reliability(data: Mapping[str, Any], path: Path) -> None:
    reliability_diagrams({title: Report.from_json(panel["path"]) for title, panel in data["panels"].items()}, path)


@dataclass(frozen=True)
class _Kind:
    """One kind of figure; ``caption`` says what is to be seen, in numbers."""

    title: str
    prepare: Callable[[Evidence, str], dict[str, Any]]
    plot: Callable[[Mapping[str, Any], Path], None]
    caption: Callable[[Evidence, str, Mapping[str, Any]], str]


FIGURES = {
    "sparsity": _Kind("ECE and accuracy by sparsity", prepare_lines, drawing.plot_lines, captions.of_lines),
    "sparsity-temperature": _Kind(
        "ECE and NLL by sparsity, after temperature scaling", partial(prepare_lines, scaled=True),
        drawing.plot_lines, partial(captions.of_lines, scaled=True),
    ),
    "double-descent": _Kind(
        "ECE and accuracy from dense to nearly empty", prepare_lines, drawing.plot_lines, captions.of_turns
    ),
    "polygons": _Kind("ECE of CigL and of calibrators", prepare_polygons, drawing.plot_polygons, captions.of_polygons),
    "bars": _Kind("ECE and accuracy, method by method", prepare_bars, drawing.plot_bars, captions.of_bars),
    "ablation": _Kind(
        "ECE and accuracy of CigL without its parts", partial(prepare_bars, methods=_PARTS),
        drawing.plot_bars, captions.of_bars,
    ),
    "reliability": _Kind("Reliability diagrams", prepare_reliability, plot_reliability, captions.of_reliability),
    "masks": _Kind("Accuracy of W and of Z*W", prepare_masks, drawing.plot_masks, captions.of_masks),
}  # fmt: skip


def make_figures(evidence: Evidence, contents: Contents) -> list[Figure]:
    """Every figure of the study that its finished runs allow, setting by setting."""
    made = []
    for setting in evidence.settings:
        for name in contents.figures:
            kind = FIGURES[name]
            data = kind.prepare(evidence, setting)
            if not _is_empty(data):
                title = f"{kind.title}, {setting_title(evidence, setting)}"
                caption = kind.caption(evidence, setting, data)
                made.append(Figure(f"{name}-{setting}", title, caption, data, partial(kind.plot, data)))
    return made


def _is_empty(data: Mapping[str, Any]) -> bool:
    """Whether there is nothing to draw in some panel."""
    panels = data.get("panels", [data])
    parts = list(panels.values()) if isinstance(panels, dict) else panels
    return not parts or not all(part.get("lines", part.get("bars", part.get("cigl"))) for part in parts)


def _named(evidence: Evidence, method: str) -> dict[str, Any]:
    return {"method": method, "label": evidence.study.label(method)}


def _columns(points: Mapping[float, OverSeeds], scale: float) -> dict[str, Any]:
    columns: dict[str, Any] = {"sparsity": list(points)}
    for key, name in (("mean", "value"), ("low", "low"), ("high", "high")):
        columns[key] = [scale * getattr(point, name) for point in points.values()]
    return columns
