"""make evidence: run the studies behind docs/results.md, and put their tables, figures and numbers into results/.

Hours on 2 cores. Stop it whenever you like: finished runs are kept in .evidence and never run again. The whole report
of each study is there too, as .evidence/NAME/report.html.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ("main", "ablation", "dropout", "calibrators", "mask-correlation", "double-descent")
KEPT = (".md", ".png", ".json")  # for people and for check.py; the rest, `cigl report` can write again
SCALES = {"": "small", "-conv": "small-conv"}  # by the end of the folder's name
FILES = ("mask-rates", "rise", "rise-conv")  # studies that are not the paper's


def main() -> None:
    for dataset in ("fashion-mnist", "cifar10"):
        _cigl("data", "get", dataset)
    for end, scale in SCALES.items():
        for study in STUDIES:
            _study(f"{study}{end}", study, "--scale", scale)
    for name in FILES:
        _study(name, f"evidence/{name}.yaml")


def _study(name: str, *what: str) -> None:
    folder = f".evidence/{name}"
    _cigl("study", "run", *what, "--out", folder, "--runs", ".evidence/runs")
    _cigl("report", folder)
    keep(ROOT / folder / "report", ROOT / "results" / name)


def keep(report: Path, results: Path) -> None:
    """In place of what was there."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    for path in sorted(report.iterdir()):
        if path.suffix in KEPT:
            shutil.copy(path, results)


def _cigl(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "cigl.cli", *arguments], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
