"""The data of a report for other programs: a row per run, and a row per mean and difference."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from cigl.report.evidence.comparisons import change
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import measured
from cigl.report.evidence.statistics import mean

Row = dict[str, Any]


def files(evidences: Sequence[Evidence]) -> dict[str, bytes]:
    """Contents by file name. Accuracy is a share, FLOPs are against dense."""
    runs = [row for evidence in evidences for row in run_rows(evidence)]
    statistics = [row for evidence in evidences for row in statistic_rows(evidence)]
    studies = [{"folder": str(e.folder), **e.study.plain()} for e in evidences]
    whole = {"studies": studies, "runs": list(_with_sources(evidences)), "statistics": statistics}
    return {
        "runs.csv": _csv(runs),
        "statistics.csv": _csv(statistics),
        "data.json": json.dumps(whole, allow_nan=False, separators=(",", ":")).encode(),
    }


def run_rows(evidence: Evidence) -> Iterator[Row]:
    for run in evidence.runs:
        cell, result = run.cell, run.result
        row = {
            "study": evidence.study.name,
            "setting": cell.setting,
            "method": cell.method,
            "sparsity": cell.sparsity,
            "seed": cell.seed,
            "digest": cell.digest,
            "temperature": result["temperature"],
        }
        for scaled, numbers in sorted(run.numbers.items()):
            end = "_temperature" if scaled else ""
            row |= {name + end: one.value for name, one in numbers.items()}
            row |= {f"{name}_floor{end}": one.floor for name, one in numbers.items() if one.floor}
        row |= {name: result.get(name) for name in ("training_flops", "inference_flops", "explored", "seconds")}
        row |= {name: result[name] for name in ("active", "nonzeros") if name in result}  # of earlier runs: not
        if run.masks:
            row |= {"accuracy_W": run.masks["W"], "accuracy_ZW": sum(run.masks["Z*W"]) / len(run.masks["Z*W"])}
        yield row


def statistic_rows(evidence: Evidence) -> Iterator[Row]:
    """Every mean over seeds, and every difference against the reference."""
    reference = evidence.study.reference
    for setting in evidence.settings:
        for (method, sparsity), metric, scaled in product(evidence.cells(setting), measured(), (False, True)):
            if not (numbers := evidence.numbers(setting, method, sparsity, metric, scaled)):
                continue
            place = {"study": evidence.study.name, "setting": setting, "method": method, "sparsity": sparsity}
            place |= {"metric": metric, "temperature_scaled": scaled}
            yield place | {"of": "mean"} | asdict(mean(numbers))
            found = change(evidence, setting, method, sparsity, metric, scaled)
            if found is not None and method != reference:
                yield place | {"of": f"difference to {reference}"} | asdict(found)


def _with_sources(evidences: Sequence[Evidence]) -> Iterator[Row]:
    for evidence in evidences:
        for run, row in zip(evidence.runs, run_rows(evidence), strict=True):
            yield row | {"config": run.cell.config.plain(), "versions": run.result["versions"]}


def _csv(rows: Sequence[Row]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()
