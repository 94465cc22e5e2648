"""How a network is called: which arguments are its inputs, which have one fixed value, and for which sizes it holds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.runtime.network.conditions import Condition, as_source, holds

Path = tuple[str | int, ...]  # an argument's name, and the keys and indices that lead to a tensor inside of it
_MISSING = object()


@dataclass
class Signature:
    """The inputs in their order, as paths. ``order`` are the names that can be passed by position."""

    inputs: list[Path]
    order: list[str]
    defaults: dict[str, Any] = field(default_factory=dict)  # an argument that is no input may be passed with its own
    fixed: dict[Path, Any] = field(default_factory=dict)  # arguments that the graph was made with
    dtypes: list[torch.dtype | None] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    sized: bool = False  # whether all shapes in the network follow from those of the inputs, whatever their values

    @property
    def names(self) -> list[str]:
        return [written(path) for path in self.inputs]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, or one sentence on what is wrong with it."""
        if not kwargs and len(args) == len(self.inputs) and self._only_by_position:
            return list(args)
        if len(args) > len(self.order):
            raise CiglError(f"the model takes {self._described}, not {len(args)} by position.")
        given = dict(zip(self.order, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise CiglError(f"{min(twice)} was given twice, by position and by name.")
        given |= kwargs
        self._check_others(given)
        found = [_inside(given, path) for path in self.inputs]
        for path, each in zip(self.inputs, found, strict=True):
            if each is _MISSING or each is None:
                raise CiglError(f"the model takes {self._described}; {written(path)} is missing.")
        return found

    @property
    def _only_by_position(self) -> bool:
        return self.inputs == [(name,) for name in self.order[: len(self.inputs)]]

    @property
    def _described(self) -> str:
        return f"{len(self.inputs)} inputs ({', '.join(self.names)})"

    def _check_others(self, given: Mapping[str, Any]) -> None:
        known = {path[0] for path in (*self.inputs, *self.fixed)}
        for name, value in given.items():
            if name not in known and value is not None and not _same(value, self.defaults.get(name, _MISSING)):
                raise CiglError(
                    f"the model takes {self._described}, but not {name}: an argument with a default keeps it in the "
                    "engine, unless it is among the example_inputs that the engine is made with."
                )
        for path, value in self.fixed.items():
            now = _inside(given, path)
            if now is not _MISSING and not _same(now, value):
                raise CiglError(
                    f"{written(path)} was {value!r} when the model was captured, and can't be {str(now)[:40]} now: "
                    "make another engine, with this value among its example_inputs."
                )

    def check(self, inputs: Sequence[Any]) -> None:
        """Whether the network is right for inputs like these."""
        for name, each in zip(self.names, inputs, strict=True):
            if not isinstance(each, Tensor):
                raise CiglError(f"{name} must be a tensor, not {type(each).__name__}.")
            if each.layout != torch.strided:
                raise CiglError(f"{name} must be a plain tensor, not {each.layout}: call {name}.to_dense() first.")
            if each.device.type != "cpu":
                raise CiglError(f"the engine runs on the CPU, but {name} is on {each.device}: call {name}.cpu() first.")
            if each.is_floating_point() and each.dtype != torch.float32:
                raise CiglError(
                    f"the engine computes in float32, but {name} is {each.dtype}: call {name}.float() first."
                )
        for name, each, dtype in zip(self.names, inputs, self.dtypes, strict=False):
            if dtype is not None and each.dtype != dtype:
                raise CiglError(f"{name} is {each.dtype}, but the model was captured with {dtype}: convert it first.")
        shapes = [tuple(each.shape) for each in inputs]
        for condition in self.conditions:
            if not holds(condition, shapes):
                raise CiglError(
                    f"the model was captured for inputs with {as_source(condition, self.names)}, and can't take "
                    f"{', '.join(map(str, shapes))}: make another engine with example_inputs of this shape."
                )


def of_forward(model: nn.Module, names: Sequence[str]) -> Signature:
    """Of a traced forward, whose other arguments keep their defaults."""
    order, defaults = parameters(model)
    return Signature([(name,) for name in names], order or list(names), defaults)


def parameters(model: nn.Module) -> tuple[list[str], dict[str, Any]]:
    """The names of a forward that can be passed by position, and all plain defaults."""
    signature = inspect.signature(model.forward).parameters.values()
    order = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return order, {p.name: p.default for p in signature if isinstance(p.default, bool | int | float | str)}


def written(path: Path) -> str:
    """As it reads in Python.

    >>> written(("batch", "pixels", 0))
    "batch['pixels'][0]"
    """
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _inside(given: Mapping[str, Any], path: Path) -> Any:
    value: Any = given
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)
