"""The Python example in docs/report.md runs."""

import re
from pathlib import Path

from cigl.report.figures.catalogue import FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()


def test_the_example_runs(finished, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace('"studies/main"', repr(str(finished))), {})
    assert "seed_error" in capsys.readouterr().out


def test_every_figure_is_named():
    assert all(f"`{name}`" in PAGE for name in FIGURES)
