"""The tables: which studies have them, and how they are computed. ``formats`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cigl.common.errors import CiglError
from cigl.common.text import percent, signed
from cigl.report.evidence.comparisons import change, contrasts, masked_accuracies, relative, sign
from cigl.report.evidence.measurements import Evidence, Run
from cigl.report.evidence.metrics import (
    ACCURACY,
    ECE,
    HEADLINE,
    NOTES,
    SCALED,
    change_heading,
    file_name,
    heading,
    lookup,
    tabulated,
)
from cigl.report.evidence.recognise import kinds
from cigl.report.evidence.statistics import NOTABLE, mean
from cigl.report.tables.by_sparsity import matrix
from cigl.report.tables.entries import change_entry, difference_entry, mean_entry, metric_number, number
from cigl.report.tables.formats import EMPTY, Entry, Table
from cigl.sparsify.methods import catalogue as methods
from cigl.study.grid import Study
from cigl.train.config import Config

_STD = "Mean ± standard deviation over seeds."
_TEMPERATURES = (
    "Every method after temperature scaling, its temperature fitted on the held-out part of the training data."
)
_LESS_ACCURATE = " †"
_LOSS = 0.01  # of accuracy, beyond which no gain in calibration is shown as one, even where few seeds leave it unclear
_NOT_LESS_ACCURATE = "the accuracy not lower, neither significantly nor by more than a point"
_PRINTED = {ECE: "ece", ACCURACY: "accuracy"}  # what the paper prints of ours


def _by_sparsity(evidence: Evidence, setting: str, *, metric: str, scaled: bool = False) -> Table:
    """As the paper prints it: methods by sparsities. Bold are calibration errors well below the reference's."""
    floors = _floors(evidence, setting, metric, scaled)

    def entry(method: str, sparsity: float) -> Entry:
        numbers = evidence.numbers(setting, method, sparsity, metric, scaled)
        if not numbers:
            return EMPTY
        fallen = relative(evidence, setting, method, sparsity, metric, scaled) if floors else None
        made = mean_entry(mean(numbers), metric, (setting, method, sparsity))
        better = fallen is not None and fallen <= -NOTABLE
        return _marked(evidence, replace(made, bold=True)) if better else made

    notes = [_STD]
    title = lookup(metric).title
    if floors:
        reference = evidence.study.label(evidence.study.reference)
        bold = f"Bold: at least {percent(NOTABLE)} below {reference}'s {title}, {_NOT_LESS_ACCURATE}."
        notes.append(" ".join([bold, NOTES[metric]] if metric in NOTES else [bold]))
        span = f"{min(floors):.4f} to {max(floors):.4f}"
        notes.append(f"Noise floor: {span}, what perfectly calibrated networks would show.")
    if scaled:
        notes.append(_TEMPERATURES)
    name = f"{file_name(metric)}{'-temperature' if scaled else ''}"
    title = heading(metric) + (" after temperature scaling" if scaled else "")
    printed = (
        "" if scaled else _PRINTED.get(metric, "")
    )  # the paper scaled no method but one, and prints no number of it
    return _explained(matrix(evidence, setting, name, title, entry, metric, printed, notes))


def _marked(evidence: Evidence, better: Entry) -> Entry:
    """A lower ECE that costs accuracy is no gain: it gets a mark in place of bold type."""
    change_of_accuracy = change(evidence, *better.runs, ACCURACY) if better.bold and better.runs else None
    if change_of_accuracy is None or (sign(change_of_accuracy) >= 0 and change_of_accuracy.value >= -_LOSS):
        return better
    return replace(better, text=better.text + _LESS_ACCURATE, bold=False)


def _explained(table: Table) -> Table:
    marked = any(entry.text.endswith(_LESS_ACCURATE) for row in table.rows for entry in row)
    note = f"{_LESS_ACCURATE.strip()} The ECE is lower, but so is the accuracy, significantly or by more than a point."
    return replace(table, notes=(*table.notes, note)) if marked else table


def _changes(evidence: Evidence, setting: str) -> Table:
    """ECE changes against the reference, as in the paper's Sup-tickets and averaging tables."""
    reference = evidence.study.reference

    def entry(method: str, sparsity: float) -> Entry:
        found = change(evidence, setting, method, sparsity, ECE)
        if found is None or method == reference:
            return EMPTY
        return _marked(evidence, change_entry(found, ECE, (setting, method, sparsity)))

    notes = [
        "Mean ± standard deviation of the differences of paired seeds.",
        f"Bold: significantly lower (the 95 % interval excludes 0), and {_NOT_LESS_ACCURATE}.",
    ]
    title = f"ECE change against {evidence.study.label(reference)}"
    return _explained(matrix(evidence, setting, "ece-change", title, entry, ECE, "ece_change", notes))


def _intervals(evidence: Evidence, setting: str, *, metric: str) -> Table:
    """Means with the parts of their error, one row per cell of the grid."""
    columns = ["Method", "Sparsity", "Seeds", "Mean", "Std over seeds", "Error: seeds", "Error: test points"]
    columns += ["95 % low", "95 % high"]
    has_floor = bool(_floors(evidence, setting, metric, False))
    rows = []
    for method, sparsity in evidence.cells(setting):
        found = mean(evidence.numbers(setting, method, sparsity, metric, False))
        parts = [found.value, found.seed_sd, found.seed_error, found.test_error, found.low, found.high]
        row = [*_place(evidence, method, sparsity), Entry(str(found.seeds), found.seeds)]
        row += [metric_number(part, metric) for part in parts + ([found.floor] if has_floor else [])]
        row[3] = replace(row[3], runs=(setting, method, sparsity))
        rows.append(tuple(row))
    notes = [
        "The two errors are the parts of the mean's standard error that more seeds and more test points would shrink; "
        "the interval holds both (Student's t with Satterthwaite's degrees of freedom)."
    ]
    if any(row[2].value == 1 for row in rows):
        notes.append("One seed says nothing about the spread over seeds: its interval is for that one network.")
    if has_floor:
        columns.append("Noise floor")
        notes.append(
            f"Noise raises an {lookup(metric).title}, so its interval reaches further down; the floor is what a "
            "perfectly calibrated network would show on as many test points."
        )
    title = f"{heading(metric)} with 95 % intervals, {evidence.title(setting)}"
    return Table(f"intervals-{file_name(metric)}-{setting}", title, tuple(columns), tuple(rows), tuple(notes))


def _differences(evidence: Evidence, setting: str) -> Table:
    """Against the reference, by pairs of seeds and shared resamples."""
    ece, *others = tabulated()
    columns = ["Method", "Sparsity", "Verdict", "Seeds", change_heading(ece), "ECE change (%)"]
    columns += map(change_heading, others)
    rows = []
    for method in evidence.methods(setting):
        for one in contrasts(evidence, setting, method):
            seeds = one.changes[ece].seeds
            row = [*_place(evidence, method, one.sparsity), Entry(one.verdict()), Entry(str(seeds), seeds)]
            share = EMPTY if one.share is None else Entry(signed(100 * one.share, 1), 100 * one.share)
            row += [difference_entry(one.changes[ece], ece), share]
            rows.append((*row, *(difference_entry(one.changes.get(metric), metric) for metric in others)))
    label = evidence.study.label(evidence.study.reference)
    notes = (
        f"Method − {label} at the same sparsity with its 95 % interval: the same seeds, the same test points, the same "
        "resamples of them.",
        "Significant: the interval excludes 0. Bold: significantly better; “worse”: significantly worse. Of many "
        "intervals, one in twenty excludes 0 by chance.",
    )
    title = f"Differences against {label}, {evidence.title(setting)}"
    return Table(f"differences-{setting}", title, tuple(columns), tuple(rows), notes)


def _cost(evidence: Evidence, setting: str) -> Table:
    columns = ("Method", "Sparsity", "Training FLOPs (× dense)", "Inference FLOPs (× dense)", "Training time (s)")
    rows, several, piloted, fewer = [], {}, {}, []
    for method, sparsity in evidence.cells(setting):
        runs = list(evidence.group(setting, method, sparsity).values())
        active, nonzeros = (_of_runs(runs, name) for name in ("active", "nonzeros"))
        if active is not None and nonzeros is not None and nonzeros < active:
            label = evidence.study.label(method)
            fewer.append(f"{label} at {percent(sparsity)}: {nonzeros:,.0f} of {active:,.0f}")
        costs = (_of_runs(runs, "training_flops"), _of_runs(runs, "inference_flops"))
        row = [*_place(evidence, method, sparsity), *(number(cost, 4) for cost in costs)]
        rows.append((*row, number(_of_runs(runs, "seconds"), 1)))
        config = runs[0].cell.config
        if _predicts_with_members(config):
            several[method] = evidence.study.label(method)
        if config.temperature == "pilot":
            piloted[method] = evidence.study.label(method)
    notes = [
        "FLOPs of the sparse layers as in RigL's appendix, against dense training and one dense forward pass; "
        "masked weights are counted as free. Time is measured, one run after another or side by side."
    ]
    if fewer:
        notes.append(f"Non-zero weights, where some of the active positions hold a zero: {'; '.join(fewer)}.")
    if several:
        notes.append(
            f"{', '.join(several.values())}: predictions are averaged over several networks, and inference costs "
            "that many times as much."
        )
    if piloted:
        notes.append(
            f"{', '.join(piloted.values())}: a pilot run, nearly as long again, is not counted; one serves all seeds."
        )
    return Table(f"cost-{setting}", f"Cost, {evidence.title(setting)}", columns, tuple(rows), tuple(notes))


def _predicts_with_members(config: Config) -> bool:
    """A method of a user's own module may be one that this process can't import."""
    with suppress(CiglError, ImportError):
        return methods.method(config.method).predicts_with == "members"
    return False


def _masks(evidence: Evidence, setting: str) -> Table:
    columns = ("Method", "Sparsity", "Accuracy of W (%)", "Mean of Z*W (%)", "Drop (points)")
    rows = []
    for method, sparsity in evidence.cells(setting):
        found = masked_accuracies(evidence, setting, method, sparsity)
        if found is not None:
            entries = (mean_entry(one, ACCURACY, (setting, method, sparsity)) for one in found)
            rows.append((*_place(evidence, method, sparsity), *entries))
    notes = ("W: the weights at the end of training; Z*W: the same under random masks. " + _STD,)
    title = f"Accuracy under random masks, {evidence.title(setting)}"
    return Table(f"masks-{setting}", title, columns, tuple(rows), notes)


def _has_changes(study: Study) -> bool:
    """Whether it is about changes that the paper prints as such."""
    return bool({"sup-tickets", "cigl-no-rm"} & set(kinds(study).values()))


class TableKind(NamedTuple):
    """One kind of table: how it is made, and which studies have it."""

    make: Callable[[Evidence, str], Table]
    suits: Callable[[Study], bool] = lambda study: True


def kinds_of_tables() -> dict[str, TableKind]:
    """In the order of the page; each metric has at least one."""
    by_sparsity = {metric: TableKind(partial(_by_sparsity, metric=metric)) for metric in tabulated()}
    return {
        "masks": TableKind(_masks, lambda study: study.masks > 0),
        "ece-change": TableKind(_changes, _has_changes),
        **{file_name(metric): by_sparsity[metric] for metric in HEADLINE},
        "differences": TableKind(_differences),
        **{
            f"{file_name(each)}-temperature": TableKind(partial(_by_sparsity, metric=each, scaled=True))
            for each in SCALED
        },
        **{file_name(metric): kind for metric, kind in by_sparsity.items() if metric not in HEADLINE},
        **{f"intervals-{file_name(metric)}": TableKind(partial(_intervals, metric=metric)) for metric in HEADLINE},
        "cost": TableKind(_cost),
    }


def make_tables(evidence: Evidence) -> list[Table]:
    """Every table of the study, setting by setting; one that would be empty is left out."""
    wanted = [kind for kind in kinds_of_tables().values() if kind.suits(evidence.study)]
    made = (kind.make(evidence, setting) for setting in evidence.settings for kind in wanted)
    return [table for table in made if table.rows]


def _place(evidence: Evidence, method: str, sparsity: float) -> list[Entry]:
    return [Entry(evidence.study.label(method)), Entry(percent(sparsity), sparsity)]


def _of_runs(runs: Sequence[Run], name: str) -> float | None:
    values = [run.result.get(name) for run in runs]
    known = [value for value in values if isinstance(value, (int, float))]
    return float(np.mean(known)) if known else None


def _floors(evidence: Evidence, setting: str, metric: str, scaled: bool) -> list[float]:
    """Noise floors of all runs; none for a metric that noise does not raise."""
    found = (evidence.numbers(setting, *cell, metric, scaled) for cell in evidence.cells(setting))
    floors = [one.floor for numbers in found for one in numbers.values()]
    return floors if any(floors) else []
