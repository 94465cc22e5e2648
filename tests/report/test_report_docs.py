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


def test_what_the_docs_used_to_import():
    """docs/report.md of 0.1, before the report had a room of its own."""
    from cigl.study.evidence import Evidence
    from cigl.study.figures import prepare_lines
    from cigl.study.statistics import difference, mean

    assert {each.__module__ for each in (Evidence, prepare_lines, difference, mean)} == {
        "cigl.report.evidence.measurements", "cigl.report.figures.catalogue", "cigl.report.evidence.statistics"
    }  # fmt: skip
