"""The fields of a method that a user may set: listed, and checked."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from cigl.common.errors import CiglError, unknown
from cigl.common.numbers import is_number, is_whole
from cigl.sparsify.methods.schedule import Decay, Rise

if TYPE_CHECKING:
    from cigl.sparsify.methods.catalogue import Method

# What a method is, rather than how it is set: a subclass or the catalogue decides.
_FIXED = {"name", "about", "keep_snapshots", "resparsify", "predicts_with", "starts_dense", "memory"}
_SCHEDULES = {"drop_fraction", "random_mask"}


@dataclass(frozen=True)
class Option:
    """A field of a method: bool, int, float or str, or one of a few ``choices``."""

    name: str
    type: type
    default: Any
    choices: tuple[str, ...] = ()

    def check(self, value: object) -> None:
        """Refuse a value of another type."""
        if self.choices and value not in self.choices:
            raise unknown(self.name, value, self.choices)
        numbers = {int: is_whole, float: is_number}
        fits = numbers[self.type](value) if self.type in numbers else isinstance(value, self.type)
        words = {bool: "true or false", int: "a whole number", float: "a number"}.get(self.type, "a string")
        _require(fits, self.name, value, words)


def options_of(method: Method) -> dict[str, Option]:
    """The fields that may be set. One that is None has no effect in this method, and is left out."""
    try:
        hints = get_type_hints(type(method))
    except NameError:  # a user's annotation that is for type checkers alone
        hints = {}
    listed = {}
    for field in fields(method):
        value = getattr(method, field.name)
        hint = hints.get(field.name, type(value))
        if field.name not in _FIXED and not (value is None and type(None) in get_args(hint)):
            listed[field.name] = _option(field.name, hint, value)
    return listed


def _option(name: str, hint: Any, value: Any) -> Option:
    if isinstance(value, Decay):  # a number sets where it starts
        return Option(name, float, value.start)
    if isinstance(value, Rise):  # ... or where it ends
        return Option(name, float, value.rate)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return Option(name, str, value, get_args(hint))
    return Option(name, hint if hint in (bool, int, float, str) else type(value), value)


def check(method: Method) -> None:
    """Refuse values that can't work, in one sentence."""
    for name, (fits, words) in _VALID.items():
        value = getattr(method, name)
        _require(value is None or fits(value), name, value, words)
    if isinstance(rise := method.random_mask, Rise):
        _require(_is_share_below_1(rise.rate), "the rate that random_mask rises to", rise.rate, _BELOW_1)
        if not (_is_share(rise.begin) and _is_share(rise.until) and rise.begin <= rise.until):
            raise CiglError(
                f"random_mask would rise from {rise.begin!r} to {rise.until!r} of training: give two shares in [0, 1], "
                "the first not above the second, so that it ends with training or before.",
                arguments=("random_mask",),
            )
    for name, option in options_of(method).items():
        if name not in _SCHEDULES:
            option.check(getattr(method, name))


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_share_below_1(value: Any) -> bool:
    return _is_share(value) and value < 1


_BELOW_1 = "a share in [0, 1)"
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {  # what a field must be, beyond its type
    "update_every": (lambda every: is_whole(every) and every >= 1, "a whole number of steps, at least 1"),
    "drop_fraction": (
        lambda drop: isinstance(drop, Decay) and _is_share(drop.start),
        "a share from 0 to 1, or for example cigl.linear(0.3)",
    ),
    "random_mask": (lambda mask: isinstance(mask, Rise) or _is_share_below_1(mask), _BELOW_1),
    "update_until": (_is_share, "a share in [0, 1]"),
    "average_from": (_is_share_below_1, _BELOW_1),
    "fan_in_factor": (lambda factor: is_number(factor) and 0 < factor < math.inf, "a number above 0"),
    "snapshots_per_epoch": (lambda often: is_whole(often) and often >= 1, "a whole number, at least 1"),
}


def _require(fits: bool, name: str, value: object, words: str) -> None:
    if not fits:
        raise CiglError(f"{name} is {value!r}: give {words}.", arguments=(name,))
