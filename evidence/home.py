"""Draw the figures of the documentation's home page from the runs of `make demo`: python evidence/home.py runs/demo."""

from __future__ import annotations

import sys
from pathlib import Path

from cigl.calibrate import Report, prepare_reliability_diagram
from cigl.report.figures.drawing import Chart, diagram

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"

if __name__ == "__main__":
    for method, name, color in (("rigl", "RigL", "blue"), ("cigl", "CigL", "red")):
        (run,) = Path(sys.argv[1]).glob(f"{method}-80-seed-2-*")
        report = Report.from_json(run / "report.json")
        corner = [f"ECE {100 * report.ece:.1f} %", f"accuracy {100 * report.accuracy:.1f} %"]
        shown = prepare_reliability_diagram(report) | {"text": corner}
        Chart([diagram(name, shown, color)]).plot(ASSETS / f"home-{method}.svg")
