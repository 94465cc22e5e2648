"""The way back: from the gradients of the outputs to those of parameters and inputs.

A value's gradient is a sum of terms: gradients that lie somewhere, and gradients of batch norms that read the value,
which are only applied when somebody needs the whole (``by_gradient * g + by_value * value + by_one``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

from cigl.runtime.network.operations import Pair
from cigl.runtime.program.steps import Kind
from cigl.runtime.training.assembly import Assembly, Held, Outside, address
from cigl.runtime.training.forward import pool_window
from cigl.runtime.training.nodes import Conv, Flatten, Mean, Node, Pool, Sum, Term, Value, Weights


@dataclass
class Gradient:
    """The terms of a value's gradient, so far."""

    held: list[Held] = field(default_factory=list)
    norms: list[tuple[Held, Term]] = field(default_factory=list)  # the gradient behind a norm, and the norm


class Backward:
    """Appends the steps of all nodes in reverse."""

    def __init__(self, assembly: Assembly, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]):
        self.assembly = assembly
        self.readers = Counter(value for node in nodes for value in node.reads())
        self.gradients: dict[Value, Gradient] = {}
        self.sums: dict[Weights, int] = {}  # where those of a weight's gradient begin, per group of blocks
        self.summed = 0  # floats of all sums
        self.steps_of_sums: list[tuple[int, int]] = []  # steps that point to them, and where
        self.transposed: list[tuple[Weights, Any, Any]] = []  # values in transposed order: whose, which, where
        self.wanted = _wanted(nodes, inputs)
        for number, value in enumerate(outputs):
            held = assembly.take(value, kept=False)
            assembly.step(Kind.LOAD, in_=Outside(number, value.shape), out=held)
            self.of(value).held.append(held)
        for node in reversed(nodes):
            if node.out in self.gradients and node.out in self.wanted:
                _backward(node, self)
        self.inputs = [value for value in inputs if value.needs_gradient]
        for number, value in enumerate(self.inputs):
            held = self.whole(value, kept=False)
            assembly.step(Kind.STORE, in_=held, out=Outside(number, value.shape))
        for weights in self.sums:
            pattern = weights.pattern
            fields = {"count": pattern.count, "places": pattern.places, "ranks": pattern.ranks}
            assembly.once_per_batch(weights, Kind.SCATTER, **fields)
        self.end_pass()
        self.steps_of_sums += [(n, self.sums[w]) for n, w in assembly.targets if isinstance(w, Weights)]

    def of(self, value: Value) -> Gradient:
        return self.gradients.setdefault(value, Gradient())

    def end_pass(self) -> None:
        """Gradients that lie in scratch move to where they are kept."""
        for gradient in self.gradients.values():
            for number, held in enumerate(gradient.held):
                if not held.kept:
                    saved = Held(self.assembly.kept.take(held.place.shape, (0, 0)), True, held.users)
                    self.assembly.step(Kind.AFFINE, in_=held, out=saved)
                    self.assembly.scratch.give_back(held.place)
                    gradient.held[number] = saved
        self.assembly.end_pass()

    def whole(self, value: Value, kept: bool, padding: Pair = (0, 0)) -> Held:
        """The sum of all terms in one place, which is the caller's from now on."""
        if not all(self.assembly.is_ready(("back", term)) for _, term in self.gradients[value].norms):
            self.end_pass()
        gradient = self.gradients.pop(value)
        terms = gradient.held
        if len(terms) == 1 and not gradient.norms and padding == (0, 0) and (terms[0].kept or not kept):
            return terms[0]
        total: Held | None = None
        for behind, term in gradient.norms:
            numbers = self.assembly.norms[term].numbers
            fields = {
                "scale": numbers["by_gradient"],
                "add": self.assembly.place(term.value),
                "scale2": numbers["by_value"],
                "shift": numbers["by_one"],
            }
            other = total or (terms.pop() if terms else None)
            total = self._affine(value, kept, padding, behind, other, fields)
        while terms:
            one = total or terms.pop()
            total = self._affine(value, kept, padding, one, terms.pop() if terms else None, {})
        assert total is not None
        return total

    def _affine(
        self, value: Value, kept: bool, padding: Pair, one: Held, other: Held | None, fields: dict[str, Any]
    ) -> Held:
        out = self.assembly.take(value, kept, padding)
        if other is not None:
            fields["other"] = other
        self.assembly.step(Kind.AFFINE, in_=one, out=out, **fields)
        for held in (one, other):
            if held is not None:
                self.assembly.release(held)
        return out

    def into(self, value: Value) -> Held:
        """Where a node's contribution to the gradient of what it read goes: scratch, if there is no other reader."""
        return self.assembly.take(value, kept=self.readers[value] > 1)

    def so_far(self, value: Value) -> Held | None:
        """A term that may be added to and then forgotten."""
        held = self.of(value).held
        found = next((each for each in held if each.users == 1), None)
        if found is not None:
            held.remove(found)
        return found


def _wanted(nodes: Sequence[Node], inputs: Sequence[Value]) -> set[Value]:
    """The values that a parameter, or an input whose gradient is asked for, has a part in."""
    wanted = {value for value in inputs if value.needs_gradient}
    for node in nodes:
        if isinstance(node, Conv):
            parameters = [node.weights.weight, node.weights.bias]
        elif isinstance(node, Sum):
            parameters = [p for term in node.terms if term.norm for p in (term.norm.weight, term.norm.bias)]
        else:
            parameters = []
        if any(p is not None and p.requires_grad for p in parameters) or wanted.intersection(node.reads()):
            wanted.add(node.out)
    return wanted


@singledispatch
def _backward(node: Node, back: Backward) -> None:
    raise NotImplementedError(type(node))


@_backward.register
def _(node: Sum, back: Backward) -> None:
    assembly = back.assembly
    gradient = back.whole(node.out, kept=False)
    if node.relu or any(term.norm for term in node.terms):
        gradient = _mask(node, gradient, back)
    gradient.users = 0
    for term in node.terms:
        if term.value in back.wanted:
            gradient.users += 1
            if term.norm is None:
                back.of(term.value).held.append(gradient)
            else:
                back.of(term.value).norms.append((gradient, term))
    if not gradient.users:
        gradient.users = 1
        assembly.release(gradient)


def _mask(node: Sum, gradient: Held, back: Backward) -> Held:
    """Through the ReLU, in place if nobody else needs the gradient behind it; and the sums that the norms need."""
    assembly = back.assembly
    out = gradient if gradient.users == 1 and gradient.kept else assembly.take(node.out, kept=True)
    channels = gradient.place.view.channels
    fields: dict[str, Any] = {"add": assembly.place(node.a.value), "activation": node.relu, **assembly.applied(node)}
    if node.b is not None:
        fields["other"] = assembly.place(node.b.value)
    for term, mean in zip(node.terms, ("mean", "mean2"), strict=False):
        if term.norm is not None:
            fields[mean] = assembly.norms[term].numbers["mean"]
            fields["sums"] = fields.get("sums", assembly.arrays.floats(assembly.blocks * channels * 3))
    assembly.step(Kind.MASK, in_=gradient, out=out, **fields)
    for which, term in enumerate(node.terms, 1):
        if term.norm is not None:
            assembly.once_per_batch(
                ("back", term),
                Kind.NORM_GRADIENT,
                in_=assembly.place(term.value).place.view,
                sums=fields["sums"],
                norm=address(assembly.norms[term].struct),
                count=which,
            )
    if out is not gradient:
        assembly.release(gradient)
    return out


@_backward.register
def _(node: Conv, back: Backward) -> None:
    assembly, weights = back.assembly, node.weights
    through = node.x in back.wanted
    padding = _gradient_padding(node) if through else (0, 0)
    passes_on = node.add is not None and node.add in back.wanted
    dy = back.whole(node.out, passes_on, padding)
    if passes_on:
        assert node.add is not None
        dy.users += 1
        back.of(node.add).held.append(dy)
    if weights.weight.requires_grad:
        x = assembly.read(node.x, node.padding)
        if weights not in back.sums:
            back.sums[weights] = back.summed
            back.summed += assembly.groups * weights.pattern.count
        fields = assembly.weights(node, x.place.view) | {"count": weights.pattern.count}
        number = assembly.step(Kind.WEIGHT_GRADIENT, in_=x, add=dy, stride=node.stride, **fields)
        back.steps_of_sums.append((number, back.sums[weights]))
    if weights.bias is not None and weights.bias.requires_grad:
        sums = assembly.arrays.floats(assembly.blocks * dy.place.view.channels * 3)
        assembly.step(Kind.MASK, in_=dy, sums=sums)
        assembly.once_per_batch(weights.bias, Kind.SUM_BLOCKS, in_=dy.place.view, sums=sums)
    if through:
        back.of(node.x).held.append(_input_gradient(node, dy, back))
    assembly.release(dy)


def _planes(node: Conv) -> Pair:
    """Pixels of a strided layer's input in one phase of the stride, with the padding before them."""
    height, width = ((node.x.shape[i + 1] + node.padding[i] - 1) // node.stride[i] + 1 for i in (0, 1))
    return height, width


def _gradient_padding(node: Conv) -> Pair:
    """The zeros that the transposed pattern reads around the gradient of the output."""
    kernel = node.weights.pattern.kernel
    if node.stride == (1, 1):
        return max(0, kernel[0] - 1 - node.padding[0]), max(0, kernel[1] - 1 - node.padding[1])
    planes = _planes(node)
    y, x = (max((kernel[i] - 1) // node.stride[i], planes[i] - node.out.shape[i + 1], 0) for i in (0, 1))
    return y, x


def _input_gradient(node: Conv, dy: Held, back: Backward) -> Held:
    """The same kernel on the transposed pattern. A stride is undone phase by phase, and the phases are merged."""
    assembly, pattern, stride = back.assembly, node.weights.pattern, node.stride
    order, entries = pattern.transposed(stride)
    values = assembly.arrays.floats(pattern.count)
    back.transposed.append((node.weights, assembly.arrays.own(entries), values))
    out, so_far = back.into(node.x), back.so_far(node.x)
    add = {} if so_far is None else {"add": so_far}
    view = dy.place.view
    if stride == (1, 1):
        places = assembly.pattern(order, node.padding[0] - order.ky, node.padding[1] - order.kx, view)
        assembly.step(Kind.CONV, in_=dy, out=out, values=values, stride=(1, 1), **places, **add)
    else:
        places = assembly.pattern(order, -(order.ky // stride[0]), -(order.kx // stride[1]), view)
        phases = min(stride[0], pattern.kernel[0]), min(stride[1], pattern.kernel[1])
        planes = assembly.take(Value((node.x.shape[0] * phases[0] * phases[1], *_planes(node))), False)
        assembly.step(Kind.CONV, in_=dy, out=planes, values=values, stride=(1, 1), **places)
        window = {"kernel": phases, "stride": stride, "padding": node.padding}
        assembly.step(Kind.MERGE, in_=planes, out=out, **window, **add)
        assembly.release(planes)
    if so_far is not None:
        assembly.release(so_far)
    return out


@_backward.register
def _(node: Pool, back: Backward) -> None:
    kind = Kind.MAX_POOL_GRADIENT if node.largest else Kind.AVG_POOL_GRADIENT
    _simple(node, back, kind, **pool_window(node))


@_backward.register
def _(node: Mean, back: Backward) -> None:
    _simple(node, back, Kind.MEAN_GRADIENT)


@_backward.register
def _(node: Flatten, back: Backward) -> None:
    _simple(node, back, Kind.UNFLATTEN)


def _simple(node: Pool | Mean | Flatten, back: Backward, kind: Kind, **fields: Any) -> None:
    dy = back.whole(node.out, kept=False)
    if kind is Kind.MAX_POOL_GRADIENT:  # looks again for the largest
        fields["add"] = back.assembly.read(node.x)
    out = back.into(node.x)
    back.assembly.step(kind, in_=dy, out=out, **fields)
    back.of(node.x).held.append(out)
    back.assembly.release(dy)
