"""The page on reproducing the paper: its numbers of runs are those of the studies."""

import re
from pathlib import Path

from cigl.study.catalogue import EXPERIMENTS, study
from cigl.study.grid import cells

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"


def test_every_study_has_its_command_and_its_numbers_of_runs():
    text = PAGE.read_text()
    found = re.findall(r"\| `([\w-]+)` \|[^|]+\| (\d+) \| (\d+) \|", text)
    rows = {name: (int(runs), int(new)) for name, runs, new in found}
    known: set[str] = set()
    for name in EXPERIMENTS:
        runs = {cell.digest for cell in cells(study(name, "paper"))}
        assert rows.pop(name) == (len(runs), len(runs - known)), name
        assert f"cigl study run {name} --scale paper" in text
        known |= runs
    assert not rows
