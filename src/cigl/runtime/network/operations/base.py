"""What an operation is, and the one that can be any call: as torch computes it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx.node import map_aggregate

Pair = tuple[int, int]


@dataclass(frozen=True)
class Hole:
    """Where in a traced call's arguments an input goes."""

    number: int


def filled(arguments: Any, inputs: Sequence[Any] | Mapping[int, Any]) -> Any:
    """Nested arguments with the inputs in their holes.

    >>> filled(((Hole(1), Hole(0)), 7), ("a", "b"))
    (('b', 'a'), 7)
    """
    if isinstance(arguments, Hole):
        return inputs[arguments.number]
    return map_aggregate(arguments, lambda leaf: inputs[leaf.number] if isinstance(leaf, Hole) else leaf)


@dataclass(frozen=True)
class TensorMethod:
    """A tensor's method as a function."""

    name: str

    def __call__(self, x: Any, *arguments: Any, **keywords: Any) -> Any:
        return getattr(x, self.name)(*arguments, **keywords)


class Operation:
    """What a unit of a network does to its inputs."""

    outputs = 1

    def dense(self, *inputs: Any) -> Any:
        """As torch computes it."""
        raise NotImplementedError


class Identity(Operation):
    """What does nothing in eval mode; never part of a network."""


@dataclass(frozen=True)
class OnLine(Operation):
    """An operation of one dimension: that of two, on pictures of height 1."""

    operation: Operation

    def dense(self, x: Tensor) -> Any:
        return self.operation.dense(x.unsqueeze(-2)).squeeze(-2)


@dataclass(frozen=True)
class InTorch(Operation):
    """Any other call that was traced: the arguments with the inputs put in where a Hole stands."""

    call: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    copies: bool = False  # it changes its first input in place, or whatever a user's module may change: of a copy
    reshapes: bool = False  # a view, reshape or flatten: in a program, if each image becomes one row
    of_shape: bool = False  # it looks at a tensor's shape and not at its values
    effect: str = ""  # it is called for what it does: "here", among the calls around it, or at "any time"

    @property
    def keeps_sure(self) -> bool:
        """Whether the result's shape follows from the inputs' shapes, as far as we know."""
        return self.reshapes or type(self.call).__module__.startswith("torch.nn.modules")

    def dense(self, *inputs: Any) -> Any:
        if self.copies:
            inputs = tuple(each.clone() if isinstance(each, Tensor) else each for each in inputs)
        result = self.call(*filled(self.arguments, inputs), **filled(self.keywords, inputs))
        return inputs[0] if self.call is operator.setitem else result
