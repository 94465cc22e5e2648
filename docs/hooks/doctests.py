"""A griffe extension: doctests that end a docstring are shown as examples, without a heading in the source; and what is
an argument's default by the name of a constant is shown as the value."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import griffe


def with_examples(text: str) -> str:
    r"""The docstring with its doctests in a section of Google's style.

    >>> with_examples("Doubles.\n\n>>> double(2)\n4").splitlines()
    ['Doubles.', '', 'Examples:', '    >>> double(2)', '    4']
    """
    lines, inside, result = text.splitlines(), False, []
    for line in lines:
        starts = line.startswith(">>>")
        if starts and not inside:
            result.append("Examples:")
        inside = starts or (inside and bool(line.strip()))
        result.append(f"    {line}" if inside else line)
    return "\n".join(result)


def value_of(default: str, module: str) -> str:
    """
    >>> value_of("BINS", "cigl.calibrate.registry"), value_of("'cigl'", "cigl"), value_of("print", "cigl")
    ('15', "'cigl'", 'print')
    """
    found = repr(eval(default, vars(importlib.import_module(module)).copy()))
    try:
        ast.literal_eval(found)
    except (SyntaxError, ValueError):  # a function, for one, has no form that could be read again
        return default
    return found


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = with_examples(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **rest: Any) -> None:
        for parameter in func.parameters:
            if isinstance(parameter.default, griffe.Expr):
                parameter.default = value_of(str(parameter.default), func.module.path)
