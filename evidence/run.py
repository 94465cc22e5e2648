"""make evidence: run the studies behind docs/results.md, and put their tables, figures and numbers into results/.

Hours on 2 cores. Stop it whenever you like: finished runs are kept in .evidence and never run again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUDIES = {  # folder: study, scale
    "main": ("main", "small"),
    "ablation": ("ablation", "small"),
    "dropout": ("dropout", "small"),
    "calibrators": ("calibrators", "small"),
    "mask-correlation": ("mask-correlation", "small"),
    "double-descent": ("double-descent", "small"),
    "main-conv": ("main", "small-conv"),
}


def main() -> None:
    for dataset in ("fashion-mnist", "cifar10"):
        _cigl("data", "get", dataset)
    for name, (study, scale) in STUDIES.items():
        folder = f".evidence/{name}"
        _cigl("study", "run", study, "--scale", scale, "--out", folder, "--runs", ".evidence/runs")
        _cigl("report", folder, "--out", f"results/{name}.html")  # tables, figures and data go into results/NAME


def _cigl(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "cigl.cli", *arguments], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
