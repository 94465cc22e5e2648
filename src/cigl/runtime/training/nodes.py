"""What a training program computes: nodes between values, recorded in order and then joined into fewer, larger ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from cigl.runtime.network.operations import Pair
from cigl.runtime.training.patterns import Pattern


@dataclass(eq=False, frozen=True)
class Value:
    """Per image: (channels, height, width) or (features,)."""

    shape: tuple[int, ...]
    needs_gradient: bool = True  # of an input: whether the caller asks for its gradient


@dataclass(eq=False)
class Weights:
    """A layer's parameters, and where the weight's active entries are."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    pattern: Pattern


BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


@dataclass(eq=False, frozen=True)
class Conv:
    """weights * x + bias + add: a convolution, or a linear layer on features."""

    x: Value
    out: Value
    weights: Weights
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    add: Value | None = None

    def reads(self) -> list[Value]:
        return [self.x] if self.add is None else [self.x, self.add]


@dataclass(eq=False, frozen=True)
class Term:
    """A value, or a batch norm of it."""

    value: Value
    norm: BatchNorm | None = None


@dataclass(eq=False, frozen=True)
class Sum:
    """relu(a + b), each term with its batch norm; b and the ReLU may be missing."""

    out: Value
    a: Term
    b: Term | None = None
    relu: bool = False

    @property
    def terms(self) -> list[Term]:
        return [self.a] if self.b is None else [self.a, self.b]

    def reads(self) -> list[Value]:
        return [term.value for term in self.terms]


@dataclass(eq=False, frozen=True)
class Pool:
    x: Value
    out: Value
    kernel: Pair
    stride: Pair
    padding: Pair
    largest: bool  # or the mean
    count_padding: bool = False

    def reads(self) -> list[Value]:
        return [self.x]


@dataclass(eq=False, frozen=True)
class Mean:
    """Over the pixels of each channel, to (C, 1, 1)."""

    x: Value
    out: Value

    def reads(self) -> list[Value]:
        return [self.x]


@dataclass(eq=False, frozen=True)
class Flatten:
    x: Value
    out: Value

    def reads(self) -> list[Value]:
        return [self.x]


Node = Conv | Sum | Pool | Mean | Flatten
Made = dict[Value, Node]
Alone = Callable[[Value], Node | None]


def flattened(x: Value) -> Value:
    return Value((math.prod(x.shape),))


def window(x: Value, channels: int, kernel: Pair, stride: Pair, padding: Pair) -> Value:
    """What a window that moves over x yields; features have no pixels to move over."""
    if len(x.shape) == 1:
        return Value((channels,))
    height, width = ((x.shape[i + 1] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    return Value((channels, height, width))


def fuse(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Node]:
    """Norms and ReLUs into the sums that they belong to, sums into convolutions: every pass over memory counts."""
    readers = Counter([value for node in nodes for value in node.reads()] + list(outputs))
    made: Made = {}  # in order; a node that was joined is gone

    def alone(value: Value) -> Node | None:
        """The node that makes it, if nobody else reads it."""
        return made.get(value) if readers[value] == 1 else None

    for node in nodes:
        joined = node
        if isinstance(node, Sum):
            joined = _with_norms(_behind(node, alone, made), alone, made)
            conv = _conv_of(joined, alone)
            if conv is not None:
                del made[conv.out]
                other = next(value for value in joined.reads() if value is not conv.out)
                if not joined.relu:
                    joined = replace(conv, out=joined.out, add=other)
                else:
                    made[conv.out] = replace(conv, add=other)
                    joined = replace(joined, a=Term(conv.out), b=None)
        made[joined.out] = joined
    return list(made.values())


def _behind(node: Sum, alone: Alone, made: Made) -> Sum:
    """A ReLU of a sum is a sum with a ReLU."""
    before = alone(node.a.value)
    if node.b is None and node.a.norm is None and isinstance(before, Sum) and not before.relu:
        del made[before.out]
        return replace(before, out=node.out, relu=node.relu)
    return node


def _with_norms(node: Sum, alone: Alone, made: Made) -> Sum:
    """A sum of norms applies them itself."""
    if node.b is None:
        return node
    terms = []
    for term in node.terms:
        before = alone(term.value)
        if term.norm is None and isinstance(before, Sum) and before.b is None and not before.relu and before.a.norm:
            del made[before.out]
            term = before.a
        terms.append(term)
    return replace(node, a=terms[0], b=terms[1])


def _conv_of(node: Sum, alone: Alone) -> Conv | None:
    """A convolution that can add the other term itself."""
    if node.b is None or any(term.norm for term in node.terms) or node.a.value is node.b.value:
        return None
    found = (alone(value) for value in node.reads())
    return next((each for each in found if isinstance(each, Conv) and each.add is None), None)
