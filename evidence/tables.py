"""Write tables and figures of results/ again from data.json, by the rules of today's report: python evidence/tables.py.

What `cigl report` reads, runs with all of their draws, is not committed; their means, differences and intervals are,
and stand in for the runs here. So no number changes, but which are bold, what stands beside them, and the notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cigl.report.evidence import comparisons
from cigl.report.evidence.measurements import Evidence, Measured, Run
from cigl.report.evidence.metrics import measured
from cigl.report.evidence.statistics import OverSeeds
from cigl.report.figures import catalogue as figures_catalogue
from cigl.report.tables import catalogue as tables_catalogue
from cigl.report.tables.formats import to_markdown
from cigl.study.grid import Study, cells

RESULTS = Path(__file__).resolve().parent.parent / "results"
Key = tuple[Any, ...]


class Found(dict[int, Measured]):
    """Numbers by seed, and where they stand in the study."""

    place: Key


class Committed(Evidence):
    """The evidence of a study as far as its data.json holds it."""

    def numbers(self, setting: str, method: str, sparsity: float, metric: str, scaled: bool) -> dict[int, Measured]:
        found = Found(super().numbers(setting, method, sparsity, metric, scaled))
        found.place = (setting, method, sparsity, metric, scaled)
        return found


def read(folder: Path) -> tuple[Committed, dict[Key, OverSeeds]]:
    data = json.loads((folder / "data.json").read_text())
    plain = {name: value for name, value in data["studies"][0].items() if name != "folder"}
    study = Study.of(plain)
    rows = {(row["setting"], row["method"], row["sparsity"], row["seed"]): row for row in data["runs"]}
    runs = [_run(cell, row) for cell in cells(study) if (row := rows.get(_place(cell)))]
    names = [each.name for each in fields(OverSeeds)]
    statistics = {
        (
            *(row[name] for name in ("setting", "method", "sparsity", "metric", "temperature_scaled")),
            row["of"],
        ): OverSeeds(**{name: row[name] for name in names})
        for row in data["statistics"]
    }
    return Committed(study, folder, runs, {}, {}, []), statistics


def _place(cell: Any) -> Key:
    return cell.setting, cell.method, cell.sparsity, cell.seed


def _run(cell: Any, row: dict[str, Any]) -> Run:
    numbers = {}
    for scaled, end in ((False, ""), (True, "_temperature")):
        names = [name for name in measured() if row.get(name + end) is not None]
        numbers[scaled] = {
            name: Measured(row[name + end], np.zeros(1), row.get(f"{name}_floor{end}", 0.0)) for name in names
        }
    masks = {"W": row["accuracy_W"], "Z*W": [row["accuracy_ZW"]]} if "accuracy_ZW" in row else None
    return Run(cell, Path(), row, masks, {scaled: found for scaled, found in numbers.items() if found}, "", "")


@contextmanager
def committed(folder: Path) -> Iterator[Committed]:
    """Inside, the report's statistics are those that were committed."""
    evidence, known = read(folder)

    def mean(numbers: Found) -> OverSeeds:
        return known[(*numbers.place, "mean")]

    def difference(a: Found, b: Found) -> OverSeeds | None:
        return known.get((*a.place, f"difference to {evidence.study.reference}"))

    with ExitStack() as stack:
        for module in (tables_catalogue, figures_catalogue):
            stack.enter_context(mock.patch.object(module, "mean", mean))
        stack.enter_context(mock.patch.object(comparisons, "difference", difference))
        yield evidence


def tables(folder: Path) -> dict[str, str]:
    """In Markdown, by the names of their files."""
    with committed(folder) as evidence:
        return {f"{table.name}.md": to_markdown(table) for table in tables_catalogue.make_tables(evidence)}


def draw(folder: Path) -> None:
    """Its figures, but reliability diagrams: bins are not committed."""
    with committed(folder) as evidence:
        for kind in set(figures_catalogue.chosen_for(evidence.study)) - {"reliability"}:
            for setting in evidence.settings:
                figure = figures_catalogue.FIGURES[kind]
                data, path = figure.prepare(evidence, setting), folder / f"{kind}-{setting}.png"
                figure.plot(data, path) if figure.plot else figure.chart(data).plot(path)


if __name__ == "__main__":
    for data in sorted(RESULTS.glob("*/data.json")):
        draw(data.parent)
        for name, text in tables(data.parent).items():
            (data.parent / name).write_text(text)
