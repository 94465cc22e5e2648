"""HTML for notebooks, which show what ``_repr_html_`` returns: escaped texts and tables, in the notebook's style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def paragraphs(*texts: str) -> str:
    """
    >>> paragraphs("a < b", "")
    '<p>a &lt; b</p>'
    """
    return "".join(f"<p>{escape(text)}</p>" for text in texts if text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Cells of the first ``texts`` columns are texts, the others numbers.

    >>> print(table(["layer", "density"], [["fc", "0.1"]]).replace("<tr>", "\\n<tr>"))
    <table><thead>
    <tr><th style="text-align: left">layer</th><th style="text-align: right">density</th></tr></thead><tbody>
    <tr><td style="text-align: left">fc</td><td style="text-align: right">0.1</td></tr></tbody></table>
    """
    lines = "".join(_row("td", row, texts) for row in rows)
    return f"<table><thead>{_row('th', head, texts)}</thead><tbody>{lines}</tbody></table>"


def _row(tag: str, cells: Sequence[str], texts: int) -> str:
    sides = ["left"] * texts + ["right"] * (len(cells) - texts)
    shown = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


class Preformatted:
    """What is printed in columns."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
