"""Writes docs/compatibility.md from the cases that the tests run: python tests/compatibility/table.py

Every ``cases_*.py`` beside this file has a list ``CASES``.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "compatibility.md"
HEAD = """# Compatibility

Each line is a test (`tests/compatibility`); `make compatibility` writes this page. "Works" means that training does
what was asked for and that the result of `finalize` has at least the requested zeros. "Refused" means an error in one
sentence when training begins, with nothing changed.
"""


def cases():
    """All cases, by the name of their file and in its order."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    names = sorted(path.stem for path in HERE.glob("cases_*.py"))
    return [case for name in names for case in importlib.import_module(name).CASES]


def page(lines):
    """The page: a table per kind, in the order in which the kinds come.

    >>> from case import Case
    >>> print(page([Case("Trainers", "`A|B`", "refused", "it can't")]).splitlines()[-1])
    | `A\\|B` | refused: it can't |
    """
    kinds = {}
    for case in lines:
        kinds.setdefault(case.kind, []).append(case)
    parts = [HEAD]
    for kind, group in kinds.items():
        rows = [f"| {_cell(case.name)} | {_cell(_outcome(case))} |" for case in group]
        parts.append("\n".join([f"## {kind}\n", "| | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _outcome(case):
    return f"{case.outcome}: {case.how}" if case.how else case.outcome


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(cases()))
