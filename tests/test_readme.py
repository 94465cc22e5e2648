"""The README's example runs as it stands and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import cigl

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_prints_what_it_says():
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    shown = re.search(r"\nprints\n\n```\n(.*?)```", README, re.S).group(1).splitlines()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    printed = output.getvalue().splitlines()
    # Masks' sizes are exact everywhere; what depends on rounding (explored, accuracy) may differ by machine.
    assert [line.split()[:4] for line in printed[:-1]] == [line.split()[:4] for line in shown[:-1]]
    accuracy, confidence = (float(number) for number in re.findall(r"0\.\d+", printed[-1]))
    assert accuracy == pytest.approx(float(re.findall(r"0\.\d+", shown[-1])[0]), abs=0.05)
    assert abs(confidence - accuracy) < 0.1


def test_the_table_of_methods_is_the_catalogue():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", README, re.M))
    assert rows == cigl.methods()
