"""What a person sees of a run when it is done: the verdict, the table, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cigl.calibrate import Report
from cigl.calibrate.reports.text import printed, wrapped
from cigl.train.folder.by_class import by_class, draw_confusions, read_confusions


def show_result(folder: Path, result: dict[str, Any], explain: bool = False, every: bool = False) -> None:
    print(printed(Report.from_json(folder / "report.json"), every, explain))
    if result["temperature"] is not None:
        print(f"\nwith temperature {result['temperature']:.3f}:")
        print(printed(Report.from_json(folder / "report-temperature.json"), every))
    if (found := read_confusions(folder)) is not None:
        print(f"\n{wrapped(by_class(*found))}")
        draw_confusions(folder, *found)
    if result.get("nonzeros", result.get("active")) != result.get("active"):  # earlier versions have neither
        print(f"\nthe model has {result['nonzeros']:,} non-zero weights at {result['active']:,} active positions")
    print(f"\nthe run is in {folder}: model.safetensors, report.json, confusion.csv, metrics.jsonl")
