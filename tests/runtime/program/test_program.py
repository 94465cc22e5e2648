"""Programs against torch: every operation on random shapes, and the promises about NaN, threads and memory."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.weights import Weight
from cigl.runtime.program import executable, library
from cigl.runtime.program.packed import Packed
from cigl.runtime.program.program import Program

ISAS = [name for name in library.ISAS if library.available() and library.lanes(name)]
sizes = st.integers(1, 20)
batches = st.sampled_from([1, 2, 7, 8, 9, 16, 33])
densities = st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0])
isas = st.sampled_from(ISAS)


def sparse(*shape: int, density: float = 0.1) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < density)


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-4 * b.abs().max().clamp(min=1e-3))


FLATTEN = op.InTorch(torch.flatten, (op.Hole(0), 1), {}, reshapes=True)


def conv(weight: Tensor, bias: Tensor | None = None, **options: object) -> op.Conv:
    return op.Conv(Weight(weight, bias), **options)


def linear(weight: Tensor, bias: Tensor | None = None, **options: object) -> op.Linear:
    return op.Linear(Weight(weight, bias), **options)


def run(program: Program, *outputs_then_inputs: object) -> list[Tensor]:
    outputs = [each for each in outputs_then_inputs if not isinstance(each, Tensor)]
    for value in outputs:
        program.output(value)
    program.finish()
    return program.run(*(each for each in outputs_then_inputs if isinstance(each, Tensor)))


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch):
    return lambda isa: monkeypatch.setenv("CIGL_ISA", isa)


@st.composite
def windows(draw, largest=5):
    """A kernel, stride and padding per direction, and an input size that they fit."""
    result = []
    for _ in range(2):
        kernel = draw(st.integers(1, largest))
        stride, padding = draw(st.integers(1, 4)), draw(st.integers(0, kernel))
        size = draw(st.integers(max(1, kernel - 2 * padding), 36))
        result.append((size, kernel, stride, padding))
    return list(zip(*result, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [1, 3])
def test_strides_over_pixels_of_single_input_channels(isa, channels, force):
    force(isa)
    x, weight = torch.randn(1, channels, 9, 40), torch.randn(8 * channels, 1, 3, 3)
    program = Program(1, 1)
    made = program.record(conv(weight, stride=(2, 2), groups=channels), program.input(channels, 9, 40))
    assert close(*run(program, *made, x), F.conv2d(x, weight, None, 2, 0, 1, channels))


@settings(max_examples=120, deadline=None)
@given(st.data(), windows(), batches, st.integers(1, 40), st.integers(1, 70), densities, st.booleans(), isas)
def test_convolutions_are_those_of_torch(data, window, images, inputs, outputs, density, full, isa):
    (height, width), kernel, stride, padding = window
    threads = data.draw(st.integers(1, 2))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    weight = sparse(outputs, inputs, *kernel, density=density)
    bias = torch.randn(outputs) if full else None
    x = torch.randn(images, inputs, height, width)
    expected = F.conv2d(x, weight, bias, stride, padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIGL_ISA", isa)
        program = Program(images, threads)
        value, plain = program.input(inputs, height, width), conv(weight, bias, stride=stride, padding=padding)
        if not full:
            [y] = run(program, *program.record(plain, value), x)
            assert close(y, expected)
            return
        skip, scale, shift = torch.randn_like(expected), torch.randn(outputs), torch.randn(outputs)
        add = program.input(*skip.shape[1:])
        [ended] = program.record(replace(plain, activation="relu", add=True), value, add)
        summed, normed = program.record(
            replace(plain, norm=(scale, shift), add=True, activation="relu", keep=True), value, add
        )
        kept = data.draw(st.booleans())
        *_, only = program.record(replace(plain, norm=(scale, shift), activation="relu", keep=kept), value)
        results = run(program, ended, summed, normed, only, x, skip)
    norm = lambda t: F.relu(t * scale[:, None, None] + shift[:, None, None])  # noqa: E731
    wanted = (F.relu(expected + skip), expected + skip, norm(expected + skip), norm(expected))
    for result, each in zip(results, wanted, strict=True):
        assert close(result, each)


@settings(max_examples=60, deadline=None)
@given(st.data(), batches, st.integers(1, 300), st.integers(1, 200), densities, st.booleans(), isas)
def test_linear_layers_are_those_of_torch(data, images, inputs, outputs, density, first_flatten, isa):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    weights = [sparse(outputs, inputs, density=density), sparse(10, outputs, density=0.5)]
    biases = [torch.randn(outputs), None]
    x = torch.randn(images, 1, inputs, 1) if first_flatten else torch.randn(images, inputs)
    expected = F.linear(F.relu(F.linear(x.flatten(1), weights[0], biases[0])), weights[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIGL_ISA", isa)
        program = Program(images, data.draw(st.integers(1, 2)))
        [value] = program.record(FLATTEN, program.input(*x.shape[1:]))
        [hidden] = program.record(linear(weights[0], biases[0], activation="relu"), value)
        [y] = run(program, *program.record(linear(weights[1]), hidden), x)
    assert close(y, expected)


@settings(max_examples=60, deadline=None)
@given(windows(largest=4), batches, st.integers(1, 20), st.booleans(), st.integers(1, 2), isas)
def test_pooling_is_that_of_torch(window, images, channels, count, threads, isa):
    (height, width), kernel, stride, padding = window
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    height, width = max(height, kernel[0]), max(width, kernel[1])
    x = torch.randn(images, channels, height, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIGL_ISA", isa)
        program = Program(images, threads)
        value = program.input(channels, height, width)
        [largest] = program.record(op.MaxPool(kernel, stride, padding), value)
        [average] = program.record(op.AvgPool(kernel, stride, padding, count), value)
        [mean] = program.record(op.Mean(), value)
        rows = (*program.record(op.Mean(keepdim=False), value), *program.record(FLATTEN, largest))
        results = run(program, largest, average, mean, *rows, *program.record(FLATTEN, mean), x)
    wanted = F.max_pool2d(x, kernel, stride, padding)
    assert torch.equal(results[0], wanted)
    assert close(results[1], F.avg_pool2d(x, kernel, stride, padding, count_include_pad=count))
    assert close(results[2], x.mean((2, 3), keepdim=True))
    assert close(results[3], x.mean((2, 3)))
    assert torch.equal(results[4], wanted.flatten(1))
    assert torch.equal(results[5], results[3])


@settings(max_examples=40, deadline=None)
@given(batches, st.sampled_from([(5,), (3, 1, 1), (4, 6, 7), (9, 16, 17)]), isas)
def test_elementwise_operations_are_those_of_torch(images, shape, isa):
    a, b = torch.randn(images, *shape), torch.randn(images, *shape)
    scale, shift = torch.randn(shape[0]), torch.randn(shape[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIGL_ISA", isa)
        program = Program(images, 1)
        x, y = program.input(*shape), program.input(*shape)
        results = run(
            program,
            *(
                *program.record(op.Add(), x, y),
                *program.record(op.Add(activation="relu"), x, y),
                *program.record(op.Relu(), x),
            ),
            *(
                *program.record(op.Norm(scale, shift), x),
                *program.record(op.Norm(scale, shift, activation="relu"), x),
                y,
            ),
            *(a, b),
        )
    normed = a * scale.view(-1, *[1] * (len(shape) - 1)) + shift.view(-1, *[1] * (len(shape) - 1))
    for result, wanted in zip(results, (a + b, F.relu(a + b), F.relu(a), normed, F.relu(normed), b), strict=True):
        assert close(result, wanted)


def bottleneck(images: int, threads: int) -> tuple[Program, nn.Module]:
    """A small network with a strided convolution, a residual sum, pooling and a classifier, in both forms."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inner = nn.Conv2d(3, 24, 7, 2, 3), nn.Conv2d(24, 24, 3, 1, 1)
            self.down, self.short = nn.Conv2d(24, 48, 3, 2, 1), nn.Conv2d(24, 48, 1, 2)
            self.last = nn.Linear(48, 10)
            for module in self.children():
                module.weight.data *= torch.rand_like(module.weight) < 0.2

        def forward(self, x: Tensor) -> Tensor:
            x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
            x = F.relu(self.inner(x) + x)
            x = F.relu(self.down(x) + self.short(x))
            return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))

    net = Net().eval()
    weights = {name: Weight(module.weight, module.bias) for name, module in net.named_children()}
    program = Program(images, threads)
    stem = op.Conv(weights["stem"], stride=(2, 2), padding=(3, 3), activation="relu")
    [x] = program.record(stem, program.input(3, 40, 44))
    [x] = program.record(op.MaxPool((3, 3), (2, 2), (1, 1)), x)
    [x] = program.record(op.Conv(weights["inner"], padding=(1, 1), activation="relu", add=True), x, x)
    [short] = program.record(op.Conv(weights["short"], stride=(2, 2)), x)
    [x] = program.record(op.Conv(weights["down"], stride=(2, 2), padding=(1, 1), activation="relu", add=True), x, short)
    [x] = program.record(op.Mean(), x)
    [x] = program.record(FLATTEN, x)
    [x] = program.record(op.Linear(weights["last"]), x)
    program.output(x)
    program.finish()
    return program, net


@pytest.mark.parametrize("images", [1, 5, 8, 19])
def test_a_network_runs_again_and_again_in_the_same_memory(images):
    program, net = bottleneck(images, threads=1)
    size = program.bytes
    for _ in range(3):
        x = torch.randn(images, 3, 40, 44)
        assert close(program.run(x)[0], net(x).detach())
    assert program.bytes == size


def test_a_batch_of_large_images_takes_the_memory_of_one():
    sizes, x = [], torch.randn(8, 32, 70, 70)
    weight = sparse(32, 32, 3, 3)
    for images in (1, 8):
        program = Program(images, 1)
        values = program.record(conv(weight, padding=(1, 1)), program.input(32, 70, 70))
        [y] = run(program, *values, x[:images])
        assert close(y, F.conv2d(x[:images], weight, padding=1))
        sizes.append(program.bytes)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("images", [1, 8, 24])
def test_threads_do_not_change_a_bit(images, monkeypatch):
    monkeypatch.setattr(executable, "_STEP", 0)
    monkeypatch.setattr(executable, "_PROGRAM", 0)
    results = []
    for threads in (1, 2, 3):
        torch.manual_seed(0)
        program, _ = bottleneck(images, threads)
        assert used_threads(program) == threads
        results.append(program.run(torch.randn(images, 3, 40, 44))[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def used_threads(program: Program) -> int:
    return program._executable._program.threads


def chain(images: int, features: int, length: int) -> Program:
    """Linear layers without zeros: images * features**2 multiply-adds in each."""
    program = Program(images, 2)
    x = program.input(features)
    for _ in range(length):
        [x] = program.record(linear(torch.ones(features, features)), x)
    program.output(x)
    program.finish()
    return program


@pytest.mark.parametrize("apart", [True, False])
def test_tiny_work_runs_on_one_thread(apart, monkeypatch):
    """A program must have enough work to wake threads up for, and where they share each step, so must a step. Work
    counts in vectors."""
    width = library.lanes(library.isa())
    images, features = (8 * width * 2, 16) if apart else (1, 64)
    per_step = images * features**2 / (8 if not apart and library.isa() == "avx512" else width)
    for length in (1, 3):
        for program, step, threads in (
            (per_step * length, per_step, 2),
            (per_step * length + 1, 0, 1),
            (0, per_step + 1, 2 if apart else 1),
        ):
            monkeypatch.setattr(executable, "_PROGRAM", program)
            monkeypatch.setattr(executable, "_STEP", step)
            assert used_threads(chain(images, features, length)) == threads


def test_a_second_thread_is_for_tens_of_microseconds(monkeypatch):
    """As they are set for threads that spin: a small layer has none, a large one has."""
    monkeypatch.setattr(executable, "_PROGRAM", min(executable._PROGRAM, 30_000))
    assert used_threads(chain(1, 64, 1)) == 1
    assert used_threads(chain(1, 1024, 1)) == 2
    assert used_threads(chain(256, 16, 1)) == 1
    assert used_threads(chain(256, 256, 1)) == 2


@pytest.mark.parametrize("images", [2, 16])
def test_one_program_serves_several_callers_at_once(images):
    program, net = bottleneck(images, threads=1)
    batches = [torch.randn(images, 3, 40, 44) for _ in range(24)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: program.run(x)[0], batches))
    for x, y in zip(batches, results, strict=True):
        assert close(y, net(x).detach())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("images", [1, 9])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_propagates_where_a_weight_is_stored(isa, images, bad, force):
    force(isa)
    weight = torch.zeros(2, 3, 3, 3)
    weight[0, 1, 1, 1], weight[1, 2, 0, 0] = -1.0, 1.0  # channel 0 has no weight at all
    x = torch.ones(images, 3, 9, 9)
    x[:, 0] = bad
    x[0, 1, 4, 5] = bad
    program = Program(images, 1)
    [whole] = program.record(conv(weight, padding=(1, 1), activation="relu"), program.input(3, 9, 9))
    [pooled] = program.record(op.MaxPool((3, 3), (2, 2), (1, 1)), whole)
    dense, small = run(program, whole, pooled, x)
    reference = F.relu(F.conv2d(x[:, 1:], weight[:, 1:], padding=1))  # torch would multiply the bad channel by zero
    reached = torch.zeros_like(reference, dtype=torch.bool)
    reached[0, 0, 4, 5] = True
    expected = torch.where(reached, torch.relu(torch.tensor(-bad)), torch.nan_to_num(reference, 0, 0, 0))
    expected[~reached] = F.relu(F.conv2d(torch.ones_like(x[:, 1:]), weight[:, 1:], padding=1))[~reached]
    torch.testing.assert_close(dense, expected, equal_nan=True)
    torch.testing.assert_close(small, F.max_pool2d(expected, 3, 2, 1), equal_nan=True)


@pytest.mark.parametrize("images", [1, 8])
def test_a_stored_nan_weight_reaches_only_its_output(images):
    weight = torch.zeros(2, 4)
    weight[1, 2] = float("nan")
    program = Program(images, 1)
    [y] = run(program, *program.record(linear(weight, activation="relu"), program.input(4)), torch.ones(images, 4))
    assert torch.equal(y[:, 0], torch.zeros(images))
    assert y[:, 1].isnan().all()


@given(st.integers(1, 40), st.integers(1, 400), st.sampled_from([None, (1, 1), (3, 2)]), densities)
@settings(max_examples=20, deadline=None)
def test_what_is_packed_can_be_unpacked(outputs, inputs, kernel, density):
    weight = sparse(outputs, inputs, *(kernel or ()), density=density)
    assert torch.equal(Packed(weight, None).unpack(), weight)


@given(st.integers(1, 40), st.integers(1, 100), st.sampled_from([(1, 1), (3, 2)]), densities, st.sampled_from([2, 4]))
@settings(max_examples=20, deadline=None)
def test_channels_side_by_side_have_each_weight_once(outputs, inputs, kernel, density, channels):
    """Lists of inputs by who uses them, and as many values for each as it has users."""
    weight = sparse(outputs, inputs, *kernel, density=density)
    shared = Packed(weight, None).shared(channels)
    lists, groups = (1 << channels) - 1, -(-outputs // channels)
    found, at = torch.zeros(outputs, weight[0].numel()), 0
    for number, (start, end) in enumerate(itertools.pairwise(shared.rows)):
        place, users = number // lists, number % lists + 1
        if users == 1:
            assert shared.firsts[place] == at
        for input in range(start, end):
            assert shared.outputs[input] == place % groups * channels
            for user in range(channels):
                if users >> user & 1:
                    found[shared.outputs[input] + user, shared.positions[input]] += shared.values[at]
                    at += 1
    assert at == len(shared.values)
    assert torch.equal(found.view_as(weight), weight)


def test_times_say_what_each_value_cost():
    program = Program(16, 1)
    x = program.input(3, 8, 8)
    both = conv(sparse(4, 3, 3, 3), norm=(torch.ones(4), torch.ones(4)), keep=True)
    summed, normed = program.record(both, x)
    [mean] = program.record(op.Mean(), normed)
    [flat] = program.record(FLATTEN, mean)
    program.output(flat)
    program.output(summed)
    program.finish()
    values, outputs = program.times(torch.randn(16, 3, 8, 8))
    assert set(values) == {x, normed, mean}
    assert len(outputs) == 2
    assert min(*values.values(), *outputs) > 0


def test_packed_weights_share_their_values_between_programs_and_take_few_bytes():
    weight = Weight(sparse(256, 256, 3, 3, density=0.05), None)
    weight.shrink(Packed)
    packed = weight.packed(Packed)
    assert weight.bytes == packed.bytes < 7 * len(packed.values)
    program = Program(8, 1)
    [y] = program.record(op.Conv(weight, padding=(1, 1)), program.input(256, 4, 4))
    assert weight.packed(Packed) is packed
    program.output(y)
    program.finish()
    buffers = 4 * 8 * 256 * 2 * 6 * 6
    assert program.bytes < 4 * len(packed.values) + buffers


def test_what_does_not_fit_says_so():
    program = Program(2, 1)
    x = program.input(3, 8, 8)
    good = conv(sparse(4, 3, 3, 3))
    [y] = program.record(good, x)
    [flat] = program.record(FLATTEN, x)
    for wrong in (
        lambda: Program(0, 1),
        lambda: Packed(torch.zeros(2, 3, 4), None),
        lambda: Packed(torch.zeros(2, 3), torch.zeros(3)),
        lambda: program.input(3, 8),
        lambda: program.record(good, y),
        lambda: program.record(good, flat),
        lambda: program.record(replace(good, stride=(0, 1)), x),
        lambda: program.record(conv(sparse(4, 3, 9, 9)), x),
        lambda: program.record(replace(good, add=True), x, x),
        lambda: program.record(replace(good, add=True), x),
        lambda: program.record(good, x, y),
        lambda: program.record(replace(good, norm=(torch.ones(3), torch.ones(4))), x),
        lambda: program.record(op.Linear(good.weight), x),
        lambda: program.record(op.Add(), x, y),
        lambda: program.record(op.MaxPool((3, 3), (1, 1), (2, 2)), x),
        lambda: program.record(op.Mean(), flat),
        lambda: program.record(op.Identity(), x),
        lambda: program.record(op.Relu(), Program(2, 1).input(3, 8, 8)),
        lambda: program.finish(),
        lambda: program.run(torch.zeros(2, 3, 8, 8)),
        lambda: program.bytes,
    ):
        with pytest.raises(CiglError):
            wrong()
    program.output(y)
    program.finish()
    for inputs in (
        (),
        (torch.zeros(2, 3, 8, 8),) * 2,
        (torch.zeros(1, 3, 8, 8),),
        (torch.zeros(2, 3, 8, 8, dtype=torch.float64),),
        (torch.zeros(2, 3, 8, 8, device="meta"),),
    ):
        with pytest.raises(CiglError):
            program.run(*inputs)
    with pytest.raises(CiglError, match="finished"):
        program.record(op.Relu(), x)
    channels_last = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert torch.equal(program.run(channels_last)[0], program.run(channels_last.contiguous())[0])


@pytest.mark.parametrize("images", [1, 8, 33])
def test_a_program_may_only_hand_on_its_input(images):
    program = Program(images, 1)
    image, row = program.input(3, 5, 6), program.input(7)
    a, b = torch.randn(images, 3, 5, 6), torch.randn(images, 7)
    results = run(program, image, row, *program.record(FLATTEN, image), a, b)
    assert torch.equal(results[0], a)
    assert torch.equal(results[1], b)
    assert torch.equal(results[2], a.flatten(1))


def test_rows_of_pixels_lie_in_the_vectors_that_waste_least(monkeypatch):
    """Wide vectors if rows are long enough to fill them."""
    monkeypatch.setattr(library, "isa", lambda: "avx512")
    monkeypatch.setattr(library, "lanes", {"avx512": 16, "avx2": 8}.get)
    monkeypatch.setattr(library, "forced", lambda: "")
    long, short = [(3, 32, 32), (8, 14, 14)], [(8, 7, 7), (16, 8, 8)]
    assert executable.vectors(1, long)[0] == "avx512"
    assert executable.vectors(1, short)[0] == "avx2"
    assert executable.vectors(12, short)[1].lanes == 8  # images fill a narrow vector, but not a wide one
    assert executable.vectors(16, short)[0] == "avx512"
