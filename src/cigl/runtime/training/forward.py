"""The way forward: each node as steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from cigl.runtime.program.steps import Kind
from cigl.runtime.training.assembly import Assembly, NormState, Outside, address
from cigl.runtime.training.nodes import Conv, Flatten, Mean, Node, Pool, Sum, Value


def assemble_forward(
    assembly: Assembly, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> None:
    for number, value in enumerate(inputs):
        assembly.step(Kind.LOAD, in_=Outside(number, value.shape), out=assembly.place(value))
    for value in inputs:
        _store(value, outputs, assembly)
    for node in nodes:
        _forward(node, assembly)
        _store(node.out, outputs, assembly)  # before it may be gone from scratch
    assembly.end_pass()


def _store(value: Value, outputs: Sequence[Value], assembly: Assembly) -> None:
    for number, output in enumerate(outputs):
        if output is value:
            assembly.step(Kind.STORE, in_=assembly.read(value), out=Outside(number, value.shape))


@singledispatch
def _forward(node: Node, assembly: Assembly) -> None:
    raise NotImplementedError(type(node))


@_forward.register
def _(node: Conv, assembly: Assembly) -> None:
    x = assembly.read(node.x, node.padding)
    add = {} if node.add is None else {"add": assembly.place(node.add)}
    number = assembly.step(
        Kind.CONV,
        in_=x,
        out=assembly.room(node.out),
        stride=node.stride,
        values=assembly.values_of(node.weights),
        **assembly.weights(node, x.place.view),
        **add,
    )
    if node.weights.bias is not None:
        assembly.biases.append((number, node.weights))


@_forward.register
def _(node: Sum, assembly: Assembly) -> None:
    for term in node.terms:
        if term.norm is not None:
            state = assembly.norms[term] = NormState(term.norm, assembly.arrays)
            x = assembly.place(term.value)
            sums = assembly.arrays.floats(assembly.blocks * x.place.view.channels * 2)
            assembly.step(Kind.STATISTICS, in_=x, sums=sums)
            assembly.once_per_batch(term, Kind.NORM, in_=x.place.view, sums=sums, norm=address(state.struct))
    if assembly.is_kept(node.out):
        assembly.compute(node, assembly.place(node.out))


@_forward.register
def _(node: Pool, assembly: Assembly) -> None:
    kind = Kind.MAX_POOL if node.largest else Kind.AVG_POOL
    assembly.step(kind, in_=assembly.read(node.x), out=assembly.room(node.out), **pool_window(node))


@_forward.register
def _(node: Mean, assembly: Assembly) -> None:
    assembly.step(Kind.MEAN, in_=assembly.read(node.x), out=assembly.room(node.out))


@_forward.register
def _(node: Flatten, assembly: Assembly) -> None:
    assembly.step(Kind.FLATTEN, in_=assembly.read(node.x), out=assembly.room(node.out))


def pool_window(node: Pool) -> dict[str, object]:
    return {
        "kernel": node.kernel,
        "stride": node.stride,
        "padding": node.padding,
        "count_padding": node.kernel[0] * node.kernel[1] if node.count_padding else 0,
    }
