"""Operations of mobile networks, DenseNets and transformers as programs, against torch on random shapes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.weights import Weight
from cigl.runtime.program import library
from cigl.runtime.program.program import Program

ISAS = [name for name in library.ISAS if library.available() and library.lanes(name)]
batches, isas, threads = st.sampled_from([1, 2, 8, 9, 17]), st.sampled_from(ISAS), st.integers(1, 2)
activations = st.sampled_from(["", *op.ACTIVATIONS])
shapes = st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 20)))


def sparse(*shape: int, density: float = 0.3) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < density)


def close(a: Tensor, b: Tensor) -> bool:
    """Also of one element far out, where an activation is next to zero: 1e-6 is rounding of inputs of this size."""
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-4 * b.abs().max().clamp(min=1e-2))


def run(isa: str, images: int, workers: int, inputs: list[Tensor], record) -> list[Tensor]:
    """The results of the values that ``record(program, *inputs)`` returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIGL_ISA", isa)
        program = Program(images, workers)
        values = [program.input(*each.shape[1:]) for each in inputs]
        for value in record(program, *values):
            program.output(value)
        program.finish()
        program.run(*(torch.randn_like(each) for each in inputs))  # what an earlier run leaves must not matter
        return program.run(*inputs)


@st.composite
def grouped(draw):
    """A convolution in groups, perhaps dilated, and a picture that it fits."""
    groups = draw(st.integers(1, 9))
    inputs, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    kernel, stride, dilation, padding, size = [], [], [], [], []
    for _ in range(2):
        kernel.append(draw(st.integers(1, 5)))
        stride.append(draw(st.integers(1, 3)))
        dilation.append(draw(st.integers(1, 3)))
        reach = dilation[-1] * (kernel[-1] - 1) + 1
        padding.append(draw(st.integers(0, reach)))
        size.append(draw(st.integers(max(1, reach - 2 * padding[-1]), 26)))
    weight = sparse(outputs, inputs // groups, *kernel, density=draw(st.sampled_from([0.1, 1.0])))
    options = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    return (inputs, *size), weight, options


@settings(max_examples=120, deadline=None)
@given(grouped(), batches, activations, st.booleans(), threads, isas)
def test_convolutions_in_groups_and_dilated(drawn, images, activation, add, workers, isa):
    shape, weight, options = drawn
    x, bias = torch.randn(images, *shape), torch.randn(len(weight))
    expected = F.conv2d(x, weight, bias, **options)
    other = torch.randn_like(expected)
    layer = op.Conv(Weight(weight, bias), **options, add=add, activation=activation)
    [y] = run(isa, images, workers, [x, other], lambda p, a, b: p.record(layer, a, *[b] * add))
    expected = expected + other if add else expected
    assert close(y, op.Activation(activation).dense(expected) if activation else expected)


@settings(max_examples=60, deadline=None)
@given(shapes, batches, activations, threads, isas)
def test_what_is_done_to_each_element(shape, images, activation, workers, isa):
    a, b, c = (5 * torch.randn(images, *shape) for _ in range(3))
    per_channel = torch.randn(images, shape[0], 1, 1) if len(shape) == 3 else torch.randn(images, *shape)

    def record(p, a, b, c, gate):
        yield from p.record(op.Activation(activation) if activation else op.Relu(), a)
        yield from p.record(op.Multiply(activation=activation), a, b)
        yield from p.record(op.Multiply(activation=activation, add=True), gate, a, c)

    results = run(isa, images, workers, [a, b, c, per_channel], record)
    act = op.Activation(activation).dense if activation else lambda x: x
    assert close(results[0], act(a) if activation else a.relu())
    assert close(results[1], act(a * b))
    assert close(results[2], act(a * per_channel + c))


@pytest.mark.parametrize("name", op.ACTIVATIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_torchs_over_their_whole_range_and_keep_nan(name, isa):
    ends = torch.tensor([0.0, -1e30, 1e30, 1e-30, -90.0, 90.0, 3.0, -3.0, 6.0])
    x = torch.cat([torch.linspace(-30, 30, 6001), ends])[None]
    [y] = run(isa, 1, 1, [x], lambda p, a: p.record(op.Activation(name), a))
    expected = op.Activation(name).dense(x)
    assert torch.allclose(y, expected, rtol=2e-6, atol=2e-6)
    [y] = run(isa, 1, 1, [torch.full((1, 3), float("nan"))], lambda p, a: p.record(op.Activation(name), a))
    assert y.isnan().all()


@settings(max_examples=60, deadline=None)
@given(shapes, batches, st.booleans(), threads, isas)
def test_norms_and_softmax_over_channels(shape, images, affine, workers, isa):
    x = 3 + 2 * torch.randn(images, *shape)
    weight, bias = (torch.randn(shape[0]) if affine else None for _ in range(2))
    norm = (op.LayerNorm if len(shape) == 1 else op.ChannelNorm)(shape[0], weight, bias, 1e-5)

    def record(p, a):
        yield from p.record(norm, a)
        yield from p.record(op.Softmax(1), a)

    normed, shares = run(isa, images, workers, [x], record)
    last = x.movedim(1, -1)
    assert close(normed, F.layer_norm(last, shape[:1], weight, bias).movedim(-1, 1))
    assert close(shares, x.softmax(1))


@settings(max_examples=40, deadline=None)
@given(batches, st.integers(1, 300), st.integers(1, 40), activations, threads, isas)
def test_linear_layers_add_and_activate(images, inputs, outputs, activation, workers, isa):
    x, other, weight, bias = torch.randn(images, inputs), torch.randn(images, outputs), sparse(outputs, inputs), None
    layer = op.Linear(Weight(weight, bias), add=True, activation=activation)
    [y] = run(isa, images, workers, [x, other], lambda p, a, b: p.record(layer, a, b))
    expected = F.linear(x, weight) + other
    assert close(y, op.Activation(activation).dense(expected) if activation else expected)


@settings(max_examples=40, deadline=None)
@given(st.data(), batches, st.booleans(), threads, isas)
def test_concatenations_share_memory_with_their_parts_and_with_each_other(data, images, flat, workers, isa):
    """As in a DenseNet: each layer reads what all earlier ones wrote; some values stand in several places."""
    picture = () if flat else data.draw(st.tuples(st.integers(1, 7), st.integers(1, 12)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x, channels, layers = torch.randn(images, data.draw(st.integers(1, 5)), *picture), 0, []
    plan = data.draw(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["grow", "mix"])), min_size=1, max_size=4))
    channels = x.shape[1]
    for width, how in plan:
        weight = sparse(width, channels) if flat else sparse(width, channels, 3, 3)
        layers.append((Weight(weight, None), how))
        channels += width + (channels if how == "mix" else 0)

    def network(layer, concat, x):
        features, results = [x], []
        for weight, how in layers:
            whole = concat(*features)
            new = layer(weight, whole)
            features = [*features, new] if how == "grow" else [new, whole, *features]
            results += [whole, new]
        return [*results, concat(*features)]

    def record(p, a):
        def layer(weight, x):
            plain = op.Linear(weight) if flat else op.Conv(weight, padding=(1, 1))
            [y] = p.record(replace(plain, activation="relu"), x)
            return y

        return network(layer, lambda *parts: p.record(op.Concat(1, len(parts)), *parts)[0], a)

    def in_torch(weight, x):
        return (F.linear(x, weight.dense()) if flat else F.conv2d(x, weight.dense(), padding=1)).relu()

    expected = network(in_torch, lambda *parts: torch.cat(parts, 1), x)
    for ours, theirs in zip(run(isa, images, workers, [x], record), expected, strict=True):
        assert close(ours, theirs)


def test_a_densenet_takes_little_more_memory_than_its_last_concatenation():
    program = Program(1, 1)
    features = [program.input(16, 32, 32)]
    for _ in range(8):
        [whole] = program.record(op.Concat(1, len(features)), *features)
        width = whole.shape[0]
        features += program.record(op.Conv(Weight(sparse(16, width, 1, 1), None)), whole)
    [whole] = program.record(op.Concat(1, len(features)), *features)
    program.output(whole)
    program.finish()
    assert program.bytes < 1.5 * 4 * 9 * 16 * 32 * 32


def test_what_does_not_fit_is_refused():
    program = Program(2, 1)
    x, small, flat = program.input(4, 8, 8), program.input(4, 4, 4), program.input(6)
    weight = Weight(sparse(6, 2, 3, 3), None)
    for operation, inputs in (
        (op.Conv(weight, groups=3), (x,)),
        (op.Conv(weight, groups=2, add=True), (x, x)),
        (op.Conv(weight, groups=2, dilation=(5, 5)), (x,)),
        (op.Multiply(), (x, small)),
        (op.Concat(1, 2), (x, small)),
        (op.LayerNorm(5, None, None, 1e-5), (flat,)),
        (op.Linear(Weight(sparse(3, 6), None), add=True), (flat, flat)),
    ):
        with pytest.raises(CiglError):
            program.record(operation, *inputs)
