"""The fields of a method that a user may set: listed, read from text, and checked."""

from __future__ import annotations

import math
import types
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

    def read(self, text: str) -> Any:
        """The value that ``text`` stands for, as a command line gives it.

        >>> Option("random_mask", float, 0.1).read("1e-2")
        0.01
        """
        try:
            if self.type is bool:
                return {"true": True, "false": False}[text.strip().lower()]
            return self.type(text)
        except (KeyError, ValueError) as error:
            raise CiglError(f"{self.name} is {text!r}: give {_words(self)}.", arguments=(self.name,)) from error

    def check(self, value: object) -> None:
        if self.choices and value not in self.choices:
            raise unknown(self.name, value, self.choices)
        if self.type in (int, float):
            fits = is_whole(value) if self.type is int else is_number(value)
        else:
            fits = isinstance(value, self.type)
        if not fits:
            raise CiglError(f"{self.name} is {value!r}: give {_words(self)}.", arguments=(self.name,))


def _words(option: Option) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    return words.get(option.type, " or ".join(option.choices) or "a string")


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
    every, drop = method.update_every, method.drop_fraction
    if every is not None and (not is_whole(every) or every < 1):
        raise CiglError(
            f"update_every is {every!r}: give a whole number of steps, at least 1.", arguments=("update_every",)
        )
    if drop is not None and not (isinstance(drop, Decay) and is_number(drop.start) and 0 <= drop.start <= 1):
        raise CiglError(
            f"drop_fraction is {drop!r}: give a share from 0 to 1, or for example cigl.linear(0.3).",
            arguments=("drop_fraction",),
        )
    if isinstance(method.random_mask, Rise):
        _check_rise(method.random_mask)
    else:
        _check_share("random_mask", method.random_mask, below_1=True)
    _check_share("update_until", method.update_until)
    _check_share("average_from", method.average_from, below_1=True)
    factor, often = method.fan_in_factor, method.snapshots_per_epoch
    if factor is not None and not (is_number(factor) and 0 < factor < math.inf):
        raise CiglError(f"fan_in_factor is {factor!r}: give a number above 0.")
    if often is not None and not (is_whole(often) and often >= 1):
        raise CiglError(f"snapshots_per_epoch is {often!r}: give a whole number, at least 1.")
    for name, option in options_of(method).items():
        if name not in _SCHEDULES:
            option.check(getattr(method, name))


def _check_share(name: str, value: Any, below_1: bool = False) -> None:
    if value is not None and not (is_number(value) and 0 <= value <= 1 and not (below_1 and value == 1)):
        raise CiglError(f"{name} is {value!r}: give a share in [0, 1{')' if below_1 else ']'}.", arguments=(name,))


def _check_rise(rise: Rise) -> None:
    """Within [0, 1) at every moment, and at its end before training is."""
    _check_share("the rate that random_mask rises to", rise.rate, below_1=True)
    if not (is_number(rise.begin) and is_number(rise.until) and 0 <= rise.begin <= rise.until <= 1):
        raise CiglError(
            f"random_mask would rise from {rise.begin!r} to {rise.until!r} of training: give two shares in [0, 1], the "
            "first not above the second, so that it ends with training or before.",
            arguments=("random_mask",),
        )
