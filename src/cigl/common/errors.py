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


def one_line(error: BaseException, longest: int = 300) -> str:
    """What another library's error says, for the end of a sentence of ours.

    >>> one_line(RuntimeError("sizes\\n  don't match."))
    "sizes don't match"
    """
    return (" ".join(str(error).split()) or type(error).__name__)[:longest].removesuffix(".")


def listed(names: Iterable[object], most: int = 3) -> str:
    """Names for a sentence, not more than a few of them.

    >>> listed(["cat"]), listed(["a", "b"]), listed("abcdefg")
    ("'cat'", "'a' and 'b'", "'a', 'b', 'c' and 4 more")
    """
    quoted = [repr(name) for name in names]
    if len(quoted) > most + 1:
        quoted = [*quoted[:most], f"{len(quoted) - most} more"]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def percent(share: float, decimals: int = 1) -> str:
    """
    >>> percent(0.6846), percent(0.9, 0)
    ('68.5 %', '90 %')
    """
    return f"{100 * share:.{decimals}f} %"


def count(number: int, what: str) -> str:
    """
    >>> count(1, "snapshot"), count(1200, "step")
    ('1 snapshot', '1,200 steps')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def unknown(kind: str, name: object, known: Iterable[str]) -> CiglError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}."
    return CiglError(f"unknown {kind} {name!r}: {hint}")
