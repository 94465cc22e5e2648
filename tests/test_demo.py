"""`make demo` as a new user runs it, and its claim: CigL's confidence fits, at the accuracy of RigL."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_shows_what_it_claims(tmp_path):
    command = [sys.executable, str(DEMO), "--out", str(tmp_path / "demo"), "--seeds", "2"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = {}
    for line in result.stdout.splitlines():
        if match := re.match(r"\W*(dense|rigl|cigl)\b(.*)", line):
            rows[match[1]] = [float(number) for number in re.findall(r"(\d+\.\d+) ±", match[2])]
    accuracy, ece, nll = zip(rows["rigl"], rows["cigl"], strict=True)
    assert accuracy[1] > accuracy[0] - 2
    assert nll[1] < nll[0]
    assert ece[1] < 0.5 * ece[0]
    page = (tmp_path / "demo" / "index.html").read_text()
    assert page.count("<tr>") == 4
    assert [title in page for title in ("ECE, the expected calibration error,", "What to do next")] == [True, True]
    assert page.count("<svg") == 3  # a diagram per method
    commands = [line.split("#")[0].split() for line in result.stdout.split("Next:")[1].strip().splitlines()]
    assert all(" ".join(command) in page for command in commands)
    for command in commands[:2]:  # the third trains another network
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "model.cigl").is_file()
