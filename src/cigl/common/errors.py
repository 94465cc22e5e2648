"""What goes wrong has one type, says what to do, and leaves everything as it was."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable


class _AboutArguments(Exception):
    """A message, and the names of the arguments that it is about."""

    def __init__(self, message: object = "", *, arguments: Iterable[str] = ()):
        super().__init__(message)
        self.arguments = tuple(arguments)

    def shown(self, argument: Callable[[str, str | None], str]) -> str:
        """The message where an argument, with the value that it is to have, is not written as in Python.

        >>> error = CiglError("'lr' is too high: lower lr, or pass kernels='masked'.", arguments=("lr", "kernels"))
        >>> error.shown(lambda name, value: f"--{name} {value}" if value else f"--{name}")
        "'lr' is too high: lower --lr, or pass --kernels masked."
        """

        def replaced(match: re.Match[str]) -> str:
            return argument(match[1], None if match[2] is None else match[2].strip("'\""))

        if not self.arguments:
            return str(self)
        names, value = "|".join(map(re.escape, self.arguments)), r"""'[^']*'|"[^"]*"|[^\s,;:)]*[^\s,;:).]"""
        return re.sub(rf"""(?<![\w.'"-])({names})\b(?:=({value}))?""", replaced, str(self))


class CiglError(_AboutArguments, ValueError):
    """An input or an order of calls that cannot work. The message says what to do, and nothing has changed.

    >>> import cigl
    >>> try:
    ...     cigl.method("rigle")
    ... except cigl.CiglError as error:
    ...     print(error)
    unknown method 'rigle': did you mean 'rigl'?
    """


class CiglWarning(_AboutArguments, UserWarning):
    """Something that works, but probably not as it was meant. To turn it into an error:

    >>> import cigl, warnings
    >>> warnings.simplefilter("error", cigl.CiglWarning)  # doctest: +SKIP
    """


def unknown(kind: str, name: object, known: Iterable[str]) -> CiglError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    plain = {each.lower(): each for each in names}
    near = difflib.get_close_matches(str(name).lower(), plain, n=1, cutoff=0.6)
    hint = f"did you mean {plain[near[0]]!r}?" if near else f"choose from {', '.join(names)}."
    return CiglError(f"unknown {kind} {name!r}: {hint}")
