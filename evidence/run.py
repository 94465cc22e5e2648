"""make evidence: run the studies behind docs/results.md, and put their tables, figures and numbers into results/.

Hours on 2 cores. Stop it whenever you like: finished runs are kept in .evidence and never run again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from cigl.files import write
from cigl.study.store import StudyFolder

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".evidence"
RESULTS = ROOT / "results"
STUDIES = {  # folder: study, scale
    "main": ("main", "small"),
    "dropout": ("dropout", "small"),
    "calibrators": ("calibrators", "small"),
    "ablation": ("ablation", "small"),
    "double-descent": ("double-descent", "small"),
    "mask-correlation": ("mask-correlation", "small"),
    "main-conv": ("main", "small-conv"),
}


def main() -> None:
    for name, (study, scale) in STUDIES.items():
        _cigl("study", "run", study, "--scale", scale, "--out", str(WORK / name), "--runs", str(WORK / "runs"))
    _cigl("report", *(str(WORK / name) for name in STUDIES), "--out", str(WORK / "report.html"))
    for name in STUDIES:
        shutil.rmtree(RESULTS / name, ignore_errors=True)
        shutil.copytree(WORK / name / "report", RESULTS / name)
        shutil.copy(WORK / name / "study.yaml", RESULTS / name / "study.yaml")
        write(RESULTS / name / "runs.jsonl", _runs(WORK / name).encode())


def _runs(folder: Path) -> str:
    """What every run has measured, a line each, without weights."""
    found = StudyFolder(folder).find()
    if found.missing or found.failed or found.damaged:
        sys.exit(f"{folder} is not complete: see `cigl study status {folder}`.")
    places = [(each, {"setting": each.cell.setting, "method": each.cell.method}) for each in found.finished]
    return "".join(json.dumps(place | each.result | {"masks": each.masks}) + "\n" for each, place in places)


def _cigl(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "cigl.cli", *arguments])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
