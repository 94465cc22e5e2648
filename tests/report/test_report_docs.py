"""The Python example in docs/report.md runs, and its table of studies is complete."""

import re
from pathlib import Path

from cigl.study.catalogue import PLANS

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()


def test_the_example_runs(finished, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace('"studies/main"', repr(str(finished))), {})
    assert "seed_error" in capsys.readouterr().out


def test_every_study_is_told_of():
    assert all(f"`{name}`" in PAGE for name in PLANS)
