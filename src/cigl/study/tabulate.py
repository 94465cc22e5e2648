"""The tables of a study, from its evidence: one function each, listed in ``TABLES``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

import cigl
from cigl.study import paper
from cigl.study.contents import Contents
from cigl.study.evidence import Evidence, Run
from cigl.study.findings import (
    SHOWN,
    Metric,
    Spread,
    change,
    config_of,
    masked_accuracies,
    percent,
    relative,
    setting_title,
    signed,
)
from cigl.study.statistics import NOTABLE, OverSeeds, mean
from cigl.study.tables import EMPTY, Entry, Table

_STD = "Mean ± standard deviation over seeds."
_SCALED = "Every method after temperature scaling, its temperature fitted on the held-out part of the training data."


def _by_sparsity(evidence: Evidence, setting: str, contents: Contents, *, metric: str, scaled: bool = False) -> Table:
    """As the paper prints it: methods by sparsities, the paper's own numbers in the neighbouring columns."""
    shown, reference = SHOWN[metric], evidence.study.label(evidence.study.reference)

    def entry(method: str, sparsity: float) -> Entry:
        numbers = evidence.numbers(setting, method, sparsity, metric, scaled)
        if not numbers:
            return EMPTY
        fallen = relative(evidence, setting, method, sparsity, scaled) if metric == "ece_15" else None
        bold = fallen is not None and fallen <= -NOTABLE
        return _mean_entry(mean(numbers), shown, bold, (setting, method, sparsity))

    notes = [_STD]
    if metric == "ece_15":
        notes.append(f"Bold: at least {percent(NOTABLE)} below {reference}'s ECE. 15 bins of equal width.")
        notes.append(_floors(evidence, setting, scaled))
    if scaled:
        notes.append(_SCALED)
    title = shown.title + (" after temperature scaling" if scaled else "")
    name = f"{metric.removesuffix('_15')}{'-temperature' if scaled else ''}"
    printed = "" if scaled else shown.in_paper  # the paper scaled no method but one, and prints no number of it
    return _matrix(evidence, setting, contents, name, title, entry, shown, printed, notes)


def _changes(evidence: Evidence, setting: str, contents: Contents) -> Table:
    """ECE changes against the reference, as in the paper's Sup-tickets and averaging tables."""
    shown = SHOWN["ece_15"]._replace(in_paper="ece_change")

    def entry(method: str, sparsity: float) -> Entry:
        found = change(evidence, setting, method, sparsity, "ece_15")
        if found is None or method == evidence.study.reference:
            return EMPTY
        text = signed(found.value, 4) + (f" ± {found.seed_sd:.4f}" if found.seed_sd is not None else "")
        return Entry(
            text, found.value, found.seed_sd, found.value < 0 and found.excludes_zero, (setting, method, sparsity)
        )

    reference = evidence.study.label(evidence.study.reference)
    notes = [
        "Mean ± standard deviation of the differences of paired seeds.",
        "Bold: lower, and the 95 % interval excludes 0.",
    ]
    return _matrix(
        evidence, setting, contents, "ece-change", f"ECE change against {reference}", entry, shown, "ece_change", notes
    )


def _matrix(
    evidence: Evidence,
    setting: str,
    contents: Contents,
    name: str,
    title: str,
    entry: Callable[[str, float], Entry],
    shown: Metric,
    printed: str,
    notes: list[str],
) -> Table:
    """Methods by sparsities; the paper's columns where it prints any number of theirs."""
    methods, config = evidence.methods(setting), config_of(evidence, setting)
    theirs, slips = paper.nearest(config), []
    columns, rows = ["Method"], [[Entry(evidence.study.label(method))] for method in methods]
    for sparsity in evidence.sparsities(setting, methods):
        ours = [entry(method, sparsity) for method in methods]
        if all(one == EMPTY for one in ours):
            continue
        columns.append(percent(sparsity))
        found = [paper.find(printed, theirs, method, sparsity, contents.paper) for method in methods]
        for row, one in zip(rows, ours, strict=True):
            row.append(one)
        if not any(found):
            continue
        columns.append(f"paper {percent(sparsity)}")
        for row, number in zip(rows, found, strict=True):
            row.append(EMPTY if number is None else _paper_entry(number, shown))
            slips += [number.slip] if number is not None and number.slip else []
    if any(column.startswith("paper") for column in columns):
        same = "the same network and data" if paper.is_same(config) else "another network and other data than here"
        notes.append(f"Columns “paper”: the paper's value for {theirs}, {same}.")
    kept = tuple(tuple(row) for row in rows if any(one != EMPTY for one in row[1:]))
    notes += dict.fromkeys(slips)
    return Table(
        _name(name, setting), f"{title}, {setting_title(evidence, setting)}", tuple(columns), kept, tuple(notes)
    )


def _intervals(evidence: Evidence, setting: str, contents: Contents, *, metric: str) -> Table:
    """Means with the parts of their error, one row per cell of the grid."""
    shown = SHOWN[metric]
    columns = [
        "Method",
        "Sparsity",
        "Seeds",
        "Mean",
        "Std over seeds",
        "Error: seeds",
        "Error: test points",
        "95 % low",
        "95 % high",
    ]
    has_floor = metric == "ece_15"
    rows = []
    for method, sparsity in _cells(evidence, setting):
        found = mean(evidence.numbers(setting, method, sparsity, metric, False))
        parts = [found.value, found.seed_sd, found.seed_error, found.test_error, found.low, found.high]
        row = [*_place(evidence, method, sparsity), Entry(str(found.seeds), found.seeds)]
        row += [_number(part, shown) for part in parts + ([found.floor] if has_floor else [])]
        row[3] = Entry(row[3].text, row[3].value, runs=(setting, method, sparsity))
        rows.append(tuple(row))
    notes = [
        "The two errors are the parts of the mean's standard error that more seeds and more test points would shrink; "
        "the interval holds both (Student's t with Satterthwaite's degrees of freedom)."
    ]
    if any(row[2].value == 1 for row in rows):
        notes.append("One seed tells nothing of seeds: its interval is for that one network.")
    if has_floor:
        columns.append("Noise floor")
        notes.append(
            "Noise raises an ECE, so its interval reaches further down; the floor is what a perfectly "
            "calibrated network would show on as many test points."
        )
    title = f"{shown.title} with 95 % intervals, {setting_title(evidence, setting)}"
    return Table(
        _name(f"intervals-{metric.removesuffix('_15')}", setting), title, tuple(columns), tuple(rows), tuple(notes)
    )


def _differences(evidence: Evidence, setting: str, contents: Contents) -> Table:
    """Against the reference, by pairs of seeds and shared resamples."""
    reference = evidence.study.reference
    columns = ["Method", "Sparsity", "Seeds", "Δ ECE", "ECE change (%)", "Δ accuracy (points)", "Δ NLL", "Δ Brier"]
    rows = []
    for method, sparsity in _cells(evidence, setting):
        found = {
            name: change(evidence, setting, method, sparsity, name) for name in ("ece_15", "accuracy", "nll", "brier")
        }
        if method == reference or found["ece_15"] is None:
            continue
        row = [*_place(evidence, method, sparsity), Entry(str(found["ece_15"].seeds), found["ece_15"].seeds)]
        for name, one in found.items():
            assert one is not None
            row.append(_difference_entry(one, SHOWN[name]))
            if name == "ece_15":
                share = relative(evidence, setting, method, sparsity)
                row.append(EMPTY if share is None else Entry(signed(100 * share, 1), 100 * share))
        rows.append(tuple(row))
    label = evidence.study.label(reference)
    notes = (
        f"Method − {label} at the same sparsity with its 95 % interval: the same seeds, the same test points, the same "
        "resamples of them.",
        "Bold: the interval excludes 0. With many intervals, one in twenty may do so by chance.",
    )
    return Table(
        _name("differences", setting),
        f"Differences against {label}, {setting_title(evidence, setting)}",
        tuple(columns),
        tuple(rows),
        notes,
    )


def _cost(evidence: Evidence, setting: str, contents: Contents) -> Table:
    columns = ("Method", "Sparsity", "Training FLOPs (× dense)", "Inference FLOPs (× dense)", "Training time (s)")
    rows, several, piloted = [], {}, {}
    for method, sparsity in _cells(evidence, setting):
        runs = list(evidence.group(setting, method, sparsity).values())
        costs = (_of_runs(runs, "training_flops"), _of_runs(runs, "inference_flops"))
        row = [*_place(evidence, method, sparsity), *(_number(cost, Metric("", 1, 4)) for cost in costs)]
        rows.append((*row, _number(_of_runs(runs, "seconds"), Metric("", 1, 1))))
        config = runs[0].cell.config
        if cigl.method(config.method).predicts_with == "members":
            several[method] = evidence.study.label(method)
        if config.temperature == "pilot":
            piloted[method] = evidence.study.label(method)
    notes = [
        "FLOPs of the sparse layers as in RigL's appendix, against dense training and one dense forward pass; "
        "masked weights are counted as free. Time is measured, one run after another or side by side."
    ]
    if several:
        notes.append(
            f"{', '.join(several.values())}: predictions are averaged over several networks, and inference costs "
            "that many times as much."
        )
    if piloted:
        notes.append(
            f"{', '.join(piloted.values())}: a pilot run, nearly as long again, is not counted; one serves all seeds."
        )
    return Table(
        _name("cost", setting), f"Cost, {setting_title(evidence, setting)}", columns, tuple(rows), tuple(notes)
    )


def _masks(evidence: Evidence, setting: str, contents: Contents) -> Table:
    columns = ("Method", "Sparsity", "Accuracy of W (%)", "Mean of Z*W (%)", "Drop (points)")
    rows = []
    for method, sparsity in _cells(evidence, setting):
        found = masked_accuracies(evidence, setting, method, sparsity)
        if found is not None:
            entries = (_mean_entry(one, SHOWN["accuracy"], False, (setting, method, sparsity)) for one in found)
            rows.append((*_place(evidence, method, sparsity), *entries))
    notes = ("W: the weights at the end of training; Z*W: the same under random masks. " + _STD,)
    return Table(
        _name("masks", setting),
        f"Accuracy under random masks, {setting_title(evidence, setting)}",
        columns,
        tuple(rows),
        notes,
    )


TABLES: dict[str, Callable[[Evidence, str, Contents], Table]] = {
    "ece": partial(_by_sparsity, metric="ece_15"),
    "accuracy": partial(_by_sparsity, metric="accuracy"),
    "ece-temperature": partial(_by_sparsity, metric="ece_15", scaled=True),
    "nll": partial(_by_sparsity, metric="nll"),
    "nll-temperature": partial(_by_sparsity, metric="nll", scaled=True),
    "brier": partial(_by_sparsity, metric="brier"),
    "ece-change": _changes,
    "differences": _differences,
    "intervals-ece": partial(_intervals, metric="ece_15"),
    "intervals-accuracy": partial(_intervals, metric="accuracy"),
    "cost": _cost,
    "masks": _masks,
}


def tabulate(evidence: Evidence, contents: Contents) -> list[Table]:
    """Every table of the study, setting by setting; one that would be empty is left out."""
    made = (TABLES[name](evidence, setting, contents) for setting in evidence.settings for name in contents.tables)
    return [table for table in made if table.rows]


def _cells(evidence: Evidence, setting: str) -> list[tuple[str, float]]:
    methods = evidence.methods(setting)
    return [(method, sparsity) for method in methods for sparsity in evidence.sparsities(setting, [method])]


def _place(evidence: Evidence, method: str, sparsity: float) -> list[Entry]:
    return [Entry(evidence.study.label(method)), Entry(percent(sparsity), sparsity)]


def _of_runs(runs: list[Run], name: str) -> float | None:
    values = [run.result.get(name) for run in runs]
    known = [value for value in values if isinstance(value, (int, float))]
    return float(np.mean(known)) if known else None


def _number(value: float | None, shown: Metric) -> Entry:
    return EMPTY if value is None else Entry(f"{shown.scale * value:.{shown.decimals}f}", shown.scale * value)


def _mean_entry(found: OverSeeds | Spread, shown: Metric, bold: bool, runs: tuple[str, str, float]) -> Entry:
    value, spread = shown.scale * found.value, None if found.seed_sd is None else shown.scale * found.seed_sd
    text = f"{value:.{shown.decimals}f}" + ("" if spread is None else f" ± {spread:.{shown.decimals}f}")
    return Entry(text, value, spread, bold, runs)


def _paper_entry(number: paper.Printed, shown: Metric) -> Entry:
    value, spread = shown.scale * number.mean, None if number.std is None else shown.scale * number.std
    text = signed(value, shown.decimals) if number.metric == "ece_change" else f"{value:.{shown.decimals}f}"
    return Entry(text + ("" if spread is None else f" ± {spread:.3f}"), value, spread)


def _difference_entry(found: OverSeeds, shown: Metric) -> Entry:
    value, low, high = (signed(shown.scale * x, shown.decimals) for x in (found.value, found.low, found.high))
    return Entry(f"{value} [{low}, {high}]", shown.scale * found.value, bold=found.excludes_zero)


def _floors(evidence: Evidence, setting: str, scaled: bool) -> str:
    found = [evidence.numbers(setting, *cell, "ece_15", scaled) for cell in _cells(evidence, setting)]
    floors = [one.floor for numbers in found for one in numbers.values()] or [0.0]
    return f"Noise floor: {min(floors):.4f} to {max(floors):.4f}, what perfectly calibrated networks would show."


def _name(table: str, setting: str) -> str:
    return f"{table}-{setting}"
