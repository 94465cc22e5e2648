"""Tables of methods by sparsities, as the paper prints them, with its own numbers beside runs of its own settings."""

from __future__ import annotations

from collections.abc import Callable

from cigl.common.text import percent
from cigl.report.evidence import paper
from cigl.report.evidence.measurements import Evidence
from cigl.report.tables.entries import paper_entry
from cigl.report.tables.formats import EMPTY, Entry, Table


def matrix(
    evidence: Evidence,
    setting: str,
    name: str,
    title: str,
    entry: Callable[[str, float], Entry],
    metric: str,
    printed: str,
    notes: list[str],
) -> Table:
    """``entry`` gives what stands at a method and a sparsity.

    Where runs are the paper's own, what it prints of them (of ``printed``) stands in the next column.
    """
    methods = evidence.methods(setting)
    theirs = _of_paper(evidence, setting, printed)
    columns, rows = ["Method"], [[Entry(evidence.study.label(method))] for method in methods]
    for sparsity in evidence.sparsities(setting, methods):
        ours = [entry(method, sparsity) for method in methods]
        if all(one == EMPTY for one in ours):
            continue
        columns.append(percent(sparsity))
        for row, one in zip(rows, ours, strict=True):
            row.append(one)
        if any((method, sparsity) in theirs for method in methods):
            columns.append(f"paper {percent(sparsity)}")
            for row, method in zip(rows, methods, strict=True):
                row.append(paper_entry(theirs.get((method, sparsity)), metric))
    if theirs:
        where, held_out = next(iter(theirs.values())).setting, evidence.config(setting).held_out
        but = f"; here {percent(held_out)} of the training data are held out" if held_out else ""
        notes.append(f"Columns “paper”: the paper's value for {where}, the same network, data and training{but}.")
        notes += dict.fromkeys(one.slip for one in theirs.values() if one.slip)
    kept = tuple(tuple(row) for row in rows if any(one != EMPTY for one in row[1:]))
    return Table(f"{name}-{setting}", f"{title}, {evidence.title(setting)}", tuple(columns), kept, tuple(notes))


def _of_paper(evidence: Evidence, setting: str, metric: str) -> dict[tuple[str, float], paper.Printed]:
    """What the paper prints of those runs that are its own, by method and sparsity."""
    methods, tables = evidence.methods(setting), paper.TABLES.get(metric, ())
    places = {method: paper.place(evidence.config(setting, method)) for method in methods}
    if metric == "ece_change":  # a table of changes is shown as a whole, and against RigL
        reference = places.get(evidence.study.reference)
        there = {at[1] for at in places.values() if at is not None}
        tables = tuple(table for table in tables if paper.methods(table) <= there)
        if reference is None or reference[1] != "rigl":
            return {}
    cells = [(method, sparsity) for method in methods for sparsity in evidence.sparsities(setting, methods)]
    found = {cell: paper.find(metric, places[cell[0]], cell[1], tables) for cell in cells}
    return {cell: one for cell, one in found.items() if one is not None}
