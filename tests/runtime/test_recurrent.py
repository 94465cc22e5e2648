"""LSTM and GRU on sparse kernels: what torch computes, on random networks and shapes."""

import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cigl
from cigl import CiglWarning
from cigl.runtime.program import library
from cigl.runtime.recurrent import SparseRecurrent, takes

pytestmark = pytest.mark.skipif(not library.available(), reason="needs the kernels")


def thinned(layer, zeros=0.9, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.5, generator=generator)
            if parameter.dim() > 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) >= zeros)
    return layer.eval()


def flat(found):
    return [found] if isinstance(found, torch.Tensor) else [each for part in found for each in flat(part)]


def assert_same(found, expected):
    for ours, theirs in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def sparse_forward(layer):
    """Of the layer alone, so that nothing else can compute it."""
    return SparseRecurrent(layer, lambda linear, name: linear)


class Classifier(nn.Module):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.rnn = kind(12, 20, batch_first=True, **options)
        self.head = nn.Linear(20 * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@given(
    kind=st.sampled_from([nn.LSTM, nn.GRU]),
    sizes=st.tuples(*[st.integers(1, 40)] * 3, st.integers(1, 5)),
    layers=st.integers(1, 2),
    flags=st.tuples(*[st.booleans()] * 4),
    zeros=st.sampled_from([0.86, 0.95, 1.0]),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_states_are_those_of_torch(kind, sizes, layers, flags, zeros, threads):
    inputs, hidden, images, steps = sizes
    bias, batch_first, bidirectional, begun = flags
    layer = thinned(
        kind(inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional), zeros
    )
    x = torch.randn((images, steps, inputs) if batch_first else (steps, images, inputs))
    state = torch.randn(layers * (1 + bidirectional), images, hidden)
    hx = None if not begun else (state, -state) if kind is nn.LSTM else state
    given, before = torch.get_num_threads(), None if hx is None else [each.clone() for each in flat(hx)]
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            assert_same(sparse_forward(layer)(x, hx), layer(x, hx))
            if images == 1:
                alone, part = x.squeeze(0 if batch_first else 1), hx if hx is None else state.squeeze(1)
                part = (part, -part) if begun and kind is nn.LSTM else part
                assert_same(sparse_forward(layer)(alone, part), layer(alone, part))
    finally:
        torch.set_num_threads(given)
    if before is not None:
        assert all(map(torch.equal, flat(hx), before))  # the caller's


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("images", [1, 100])
def test_an_engine_runs_them_sparse_also_from_a_file(kind, images, tmp_path):
    model, x = thinned(Classifier(kind, num_layers=2, bidirectional=True)), torch.randn(images, 7, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        fast = cigl.sparse_inference(model)
    assert list(fast.plan()["layers"]) == [f"rnn.weight_ih_l{n}{end}" for n in (0, 1) for end in ("", "_reverse")]
    cigl.save(model, tmp_path / "model.cigl")
    with torch.no_grad():
        expected = model(x)
        for engine in (fast, pickle.loads(pickle.dumps(fast)), *(
            cigl.load(tmp_path / "model.cigl", engine=name) for name in ("sparse", "dense")
        )):  # fmt: skip
            assert_same(engine(x), expected)


def test_what_has_no_kernel_runs_in_torch_and_says_so():
    for options, zeros, reason in (
        ({}, 0.6, "torch is faster for LSTM layers with fewer than 70.% zeros"),
        ({"proj_size": 8}, 0.9, "no sparse kernel for LSTM"),
    ):
        layer = thinned(nn.LSTM(16, 32, **options), zeros)
        assert not takes(layer)
        with pytest.warns(CiglWarning, match=reason):
            cigl.sparse_inference(nn.Sequential(layer))
    model, x = thinned(Classifier()), torch.randn(2, 3, 12)
    with pytest.warns(CiglWarning, match="leave out example_inputs"):
        fast = cigl.sparse_inference(model, example_inputs=(x,))
    with torch.no_grad():
        assert_same(fast(x), model(x))


def test_results_are_float32_whatever_the_default_type_is():
    layer, x = thinned(nn.LSTM(12, 20)), torch.randn(4, 3, 12)
    with torch.no_grad():
        expected = layer(x)
        torch.set_default_dtype(torch.float64)
        try:
            assert_same(sparse_forward(layer)(x), expected)
        finally:
            torch.set_default_dtype(torch.float32)


def test_packed_sequences_and_single_images_with_few_zeros_go_to_torch():
    layer = thinned(nn.GRU(12, 20), 0.8)
    fast = sparse_forward(layer)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 12), torch.randn(2, 12)])
    with torch.no_grad():
        assert torch.equal(fast(packed)[1], layer(packed)[1])
        x = torch.randn(5, 1, 12)
        assert torch.equal(fast(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("x", "hx"), [((3, 2, 11), None), ((3, 2, 12), (1, 3, 20)), ((3, 2, 12), (2, 2, 20)), ((3, 2, 12), (1, 2, 19))]
)
def test_wrong_sizes_are_refused(x, hx):
    fast = sparse_forward(thinned(nn.GRU(12, 20)))
    with pytest.raises(RuntimeError, match=r"must be equal to input_size|Expected hidden size"):
        fast(torch.randn(x), None if hx is None else torch.randn(hx))
