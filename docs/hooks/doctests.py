"""A griffe extension: doctests that end a docstring are shown as examples, without a heading in the source."""

from __future__ import annotations

from typing import Any

import griffe


def with_examples(text: str) -> str:
    r"""The docstring with its doctests in a section of Google's style.

    >>> print(with_examples("Doubles.\n\n>>> double(2)\n4"))
    Doubles.
    <BLANKLINE>
    Examples:
        >>> double(2)
        4
    """
    lines, inside, result = text.splitlines(), False, []
    for line in lines:
        starts = line.startswith(">>>")
        if starts and not inside:
            result.append("Examples:")
        inside = starts or (inside and bool(line.strip()))
        result.append(f"    {line}" if inside else line)
    return "\n".join(result)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = with_examples(obj.docstring.value)
