"""The examples as a new user runs them: real data, and the accuracy that docs/trainers.md states."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cigl

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trainers.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_transformers", "vit_lightning"])
def test_an_example_reaches_what_the_page_states(name, tmp_path):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [`examples/{name}.py`]"))
    stated, zeros = float(re.search(r"accuracy (0\.\d+)", row)[1]), int(re.search(r"(\d+) % zeros", row)[1]) / 100
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {key: float(value) for key, value in re.findall(r"(zeros|accuracy|ECE) (\d\.\d+)", done.stdout)}
    assert found["zeros"] == pytest.approx(zeros, abs=0.005)
    assert found["accuracy"] > stated - 0.02  # other machines round otherwise
    assert found["ECE"] < 0.06


def test_the_plain_loop_trains_saves_and_runs_what_it_saved(tmp_path):
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "cnn.py"), "--epochs", "6"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.search(r"accuracy +(\d+\.\d+) %", done.stdout)[1]) > 90
    assert done.stdout.rstrip().endswith("the engine computes the same: True")


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]).replace("EPOCHS = 20", "EPOCHS = 6"), names)
    assert names["report"].accuracy > 0.8
    assert isinstance(names["fast"], cigl.runtime.SparseInference)
