"""Values that lie inside others: what is concatenated is written where it belongs, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cigl.runtime.program.steps import Kind, Step, Value


@dataclass(frozen=True)
class Home:
    """A value is part of another one, from this channel on."""

    whole: Value
    channel: int


def homes(steps: Sequence[Step], rows_are_columns: bool) -> dict[Value, Home]:
    """The homes of all values that are not their own.

    Later concatenations come first: of a DenseNet's, which each add to the one before, all then lie in the last.
    ``rows_are_columns``: images side by side have a picture of one pixel in the same places as a row of features.
    """
    found: dict[Value, Home] = {}
    for step in reversed(steps):
        if not step.parts:
            continue
        first = None if step.out in found else found.get(step.parts[0])
        if first is not None and all(found.get(part) == home for part, home in _placed(step, first)):
            found[step.out] = first
            continue
        for part, home in _placed(step, found.get(step.out, Home(step.out, 0))):
            if part not in found and part.shape[1:] == home.whole.shape[1:]:
                found[part] = home
    for step in steps:
        alike = step.kind == Kind.FLATTEN and step.x.shape[1:] == (1, 1) and rows_are_columns
        if alike and step.out not in found:
            found[step.out] = found.get(step.x, Home(step.x, 0))
    return found


def _placed(step: Step, home: Home) -> list[tuple[Value, Home]]:
    """A concatenation's parts and their places, if the result begins at ``home``."""
    places, channel = [], home.channel
    for part in step.parts:
        places.append((part, Home(home.whole, channel)))
        channel += part.shape[0]
    return places
