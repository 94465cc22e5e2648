"""What counts as a number: numpy's are numbers, truth values are not."""

from __future__ import annotations

import numbers


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
