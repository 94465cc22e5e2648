"""A table, and how it is written in Markdown, LaTeX and CSV. ``tables`` says what is in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table."""

    text: str
    value: float | None = None  # the number itself: what is sorted by, and what CSV holds
    spread: float | None = None  # its std, where one is shown
    bold: bool = False
    runs: tuple[str, str, float] | None = None  # setting, method and sparsity of the runs behind it


EMPTY = Entry(NOTHING)


@dataclass(frozen=True)
class Table:
    """Rows of entries under one row of headings; notes stand below."""

    name: str  # of its files
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    def text_columns(self) -> list[bool]:
        """Which columns hold no number."""
        return [all(row[i].value is None for row in self.rows) for i in range(len(self.columns))]


def to_markdown(table: Table) -> str:
    """As GitHub shows it.

    >>> print(to_markdown(Table("t", "Title", ("a", "b"), ((Entry("x|y"), Entry("1", 1.0, bold=True)),))))
    **Title**
    <BLANKLINE>
    | a | b |
    |:--|--:|
    | x\\|y | **1** |
    <BLANKLINE>
    """
    lines = [f"**{_marked(table.title)}**", ""]
    lines.append("| " + " | ".join(map(_marked, table.columns)) + " |")
    lines.append("|" + "|".join(":--" if text else "--:" for text in table.text_columns()) + "|")
    for row in table.rows:
        cells = (f"**{_marked(entry.text)}**" if entry.bold else _marked(entry.text) for entry in row)
        lines.append("| " + " | ".join(cells) + " |")
    if table.notes:
        lines += ["", *(f"- {_marked(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A ``table`` environment for a document that uses booktabs.

    >>> print(to_latex(Table("t", "A & B", ("x_1",), ((Entry("5 ± 1 %", 5.0, bold=True),),))))
    \\begin{table}
    \\centering
    \\caption{A \\& B}
    \\begin{tabular}{r}
    \\toprule
    x\\_1 \\\\
    \\midrule
    \\textbf{5 $\\pm$ 1 \\%} \\\\
    \\bottomrule
    \\end{tabular}
    \\end{table}
    <BLANKLINE>
    """
    alignment = "".join("l" if text else "r" for text in table.text_columns())
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", _latex_row(map(_escaped, table.columns)), r"\midrule"]
    for row in table.rows:
        lines.append(_latex_row(rf"\textbf{{{_escaped(e.text)}}}" if e.bold else _escaped(e.text) for e in row))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {_escaped(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """Numbers in full, not as printed; a column more for each that has a spread.

    >>> to_csv(Table("t", "T", ("method", "90 %"), ((Entry("CigL"), Entry("0.10 ± 0.02", 0.1, 0.02)),))).split()
    ['method,90', '%,90', '%', '(std)', 'CigL,0.1,0.02']
    """
    spreads = [any(row[i].spread is not None for row in table.rows) for i in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    head: list[str] = []
    for title, has_spread in zip(table.columns, spreads, strict=True):
        head += [title, f"{title} (std)"] if has_spread else [title]
    writer.writerow(head)
    for row in table.rows:
        line: list[str | float | None] = []
        for entry, has_spread in zip(row, spreads, strict=True):
            text = "" if entry.text == NOTHING else entry.text
            line.append(text if entry.value is None else entry.value)
            line += [entry.spread] if has_spread else []
        writer.writerow(line)
    return file.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv}


_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_<>[]`~&$"})
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "Δ": r"$\Delta$"}
    | {"†": r"$\dagger$", "≥": r"$\geq$", "≤": r"$\leq$", "–": "--", "\n": " ", '"': "''"}
    | {"[": "{[}", "*": "{*}"}  # after the end of a row these would be read as its options
)


def _marked(text: str) -> str:
    return " ".join(text.split()).translate(_MARKDOWN)


def _escaped(text: str) -> str:
    return text.translate(_LATEX)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
