"""What a person sees of a run when it is done: the verdict, the table, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cigl.calibrate import Report


def show_result(folder: Path, result: dict[str, Any], explain: bool = False) -> None:
    report = Report.from_json(folder / "report.json")
    print(report)
    if result["temperature"] is not None:
        print(f"\nwith temperature {result['temperature']:.3f}:")
        print(Report.from_json(folder / "report-temperature.json"))
    print(f"\n{report.explain()}" if explain else "(--explain says what these numbers mean)")
    if result.get("nonzeros", result.get("active")) != result.get("active"):  # earlier versions have neither
        print(f"\nthe model has {result['nonzeros']:,} non-zero weights at {result['active']:,} active positions")
    print(f"\nthe run is in {folder}: model.safetensors, report.json, metrics.jsonl")
