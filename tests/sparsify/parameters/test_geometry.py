"""What is an input and what an output is read off the layers' own Jacobians."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import attach, fans, sgd
from torch import nn

from cigl.sparsify.parameters.geometry import UnitLayout, layout_of
from cigl.sparsify.parameters.select import select

transformers = pytest.importorskip("transformers")
Conv1D = transformers.pytorch_utils.Conv1D


def experts(kind, **sizes):
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=4, intermediate_size=3, num_hidden_layers=1, num_local_experts=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=2, vocab_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    return next(module for module in model.modules() if type(module).__name__.endswith("Experts"))


def apply_experts(module, weight):
    """Both experts on inputs of their own, by Transformers' own function."""
    from transformers.integrations.moe import _batched_linear

    return lambda x: _batched_linear(x.view(2, -1), weight, is_transposed=module.is_transposed)


# A layer with the name of its weight, its number of inputs, and itself as a function of them: convolutions see as many
# pixels as their kernel has, and give one (a transposed one the other way round).
LAYERS = {
    "linear": (nn.Linear(5, 3), "weight", 5, lambda m, w: m),
    "conv1d": (nn.Conv1d(4, 6, 2, groups=2), "weight", 8, lambda m, w: lambda x: m(x.view(1, 4, 2))),
    "conv2d": (nn.Conv2d(2, 3, 2), "weight", 8, lambda m, w: lambda x: m(x.view(1, 2, 2, 2))),
    "up": (nn.ConvTranspose2d(4, 6, 2, groups=2), "weight", 4, lambda m, w: lambda x: m(x.view(1, 4, 1, 1))),
    "Conv1D": (Conv1D(3, 5), "weight", 5, lambda m, w: lambda x: m(x.view(1, 5))),
    "mixtral": (experts("Mixtral"), "gate_up_proj", 8, apply_experts),
    "mixtral down": (experts("Mixtral"), "down_proj", 6, apply_experts),
    "gpt-oss": (experts("GptOss"), "gate_up_proj", 8, apply_experts),
}


def jacobian(name, weight):
    """How often each input unit goes into each output unit: |dy/dx| summed over the pixels of both."""
    layer, attribute, inputs, apply = LAYERS[name]
    parameter = getattr(layer, attribute)
    with torch.no_grad():
        parameter.copy_(weight)
    found = torch.autograd.functional.jacobian(apply(layer, parameter), torch.randn(inputs)).abs()
    if name == "up":
        return found.view(6, 4, 4).sum(1)  # outputs, pixels, inputs
    if name.startswith("conv"):
        return found.view(len(parameter), -1, math.prod(parameter.shape[2:])).sum(2)
    return found.view(-1, inputs)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
@pytest.mark.parametrize("name", LAYERS)
def test_fans_are_those_of_the_jacobian(name, seed):
    layer, attribute, _, _ = LAYERS[name]
    shape = getattr(layer, attribute).shape
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    layout = layout_of(layer, attribute, len(shape))
    fan_in, fan_out = fans(layout, mask)
    uses = jacobian(name, mask.float())
    assert fan_in.tolist() == uses.sum(1).tolist()
    assert {s.name: s for s in select(layer)}[attribute].units == len(fan_in)
    assert fan_out.tolist() == uses.sum(0).tolist()
    # With weights of +-1, the sum of squares into a unit is its fan-in: after scaling, the dense one.
    ends, _ = layout.ends(torch.arange(mask.numel()), tuple(shape))
    scales = (layout.dense_fan_in(tuple(shape)) / fan_in.clamp_min(1)).sqrt()[ends].view(shape)
    squares = jacobian(name, (mask * scales).square()).sum(1)
    dense = jacobian(name, torch.ones(shape)).sum(1)
    alive = fan_in > 0
    torch.testing.assert_close(squares[alive], dense[alive])


@given(st.integers(0, 10_000))
def test_fans_of_a_bilinear_layer(seed):
    mask = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(seed)) < 0.2
    fan_in, fan_out = fans(UnitLayout(bilinear=True), mask)
    assert fan_in.tolist() == [int(mask[o].sum()) for o in range(4)]
    assert fan_out.tolist() == [int(mask[:, i].sum()) for i in range(3)] + [int(mask[:, :, j].sum()) for j in range(5)]


def test_dead_units_of_conv1d_by_hand():
    layer = Conv1D(3, 4)  # weight (4 inputs, 3 outputs)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)  # output 1, inputs 1 and 3 dead
    sparse = attach(layer, sgd(layer), "rigl", sparsity=0.75)
    sparse.layers[0].set_mask(mask)
    row = sparse.summary().rows[0]
    assert (row.dead_rows, row.dead_columns) == (1, 2)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: Conv1D(48, 400), lambda: (torch.randn(500, 400),)),
        (lambda: nn.Linear(400, 48), lambda: (torch.randn(500, 400),)),
        (lambda: nn.Bilinear(30, 20, 48), lambda: (torch.randn(500, 30), torch.randn(500, 20))),
        (lambda: nn.ConvTranspose2d(200, 48, 1), lambda: (torch.randn(500, 200, 1, 1),)),
    ],
)
def test_rescaled_weights_keep_the_variance_of_the_output(layer, inputs):
    model, x = layer(), inputs()
    nn.init.normal_(model.weight)
    nn.init.zeros_(model.bias)
    with torch.no_grad():
        before = model(*x).var()
        attach(model, sgd(model), "static", sparsity=0.9, rescale=True)
        after = model(*x).var()
        assert float(after / before) == pytest.approx(1, rel=0.1)


def test_gates_and_experts_are_read_as_torch_and_transformers_store_them():
    lstm = nn.LSTM(3, 4)
    assert {s.name: s.layout.sides(tuple(s.parameter.shape)) for s in select(lstm)} == {
        "weight_ih_l0": (16, 3),
        "weight_hh_l0": (16, 4),
    }
    by_kind = {kind: {s.name: s for s in select(experts(kind))} for kind in ("Mixtral", "GptOss")}
    assert set(by_kind["GptOss"]) == {"gate_up_proj", "down_proj"}  # not their biases, which are matrices too
    assert by_kind["Mixtral"]["gate_up_proj"].layout == UnitLayout(batched=True)
    assert by_kind["GptOss"]["down_proj"].layout == UnitLayout(batched=True, inputs_first=True)
    config = transformers.Llama4TextConfig(hidden_size=4, intermediate_size=3, num_local_experts=2)
    llama = transformers.models.llama4.modeling_llama4.Llama4TextExperts(config)
    assert {s.layout for s in select(llama)} == {UnitLayout(batched=True, inputs_first=True)}


def erk_by_fans(model, density):
    """ERK from each layer's own numbers of inputs and outputs: the scale is found by bisection."""
    sizes, sides = {}, {}
    for path, m in model.named_modules():
        if isinstance(m, nn.Linear):
            sizes[f"{path}.weight"], sides[f"{path}.weight"] = (
                m.in_features * m.out_features,
                [m.in_features, m.out_features],
            )
        elif isinstance(m, Conv1D):
            sizes[f"{path}.weight"], sides[f"{path}.weight"] = m.nx * m.nf, [m.nx, m.nf]
        elif isinstance(m, nn.Conv2d):
            sides[f"{path}.weight"] = [m.in_channels, m.out_channels, *m.kernel_size]
            sizes[f"{path}.weight"] = math.prod(sides[f"{path}.weight"])
        elif isinstance(m, nn.Bilinear):
            sides[f"{path}.weight"] = [m.in1_features, m.in2_features, m.out_features]
            sizes[f"{path}.weight"] = math.prod(sides[f"{path}.weight"])
        elif isinstance(m, nn.GRU):
            for part, inputs in (("ih", m.input_size), ("hh", m.hidden_size)):
                name = f"{path}.weight_{part}_l0"
                sizes[name], sides[name] = inputs * 3 * m.hidden_size, [inputs, 3 * m.hidden_size]
        elif hasattr(m, "down_proj"):
            for part, inputs, outputs in (("gate_up", 4, 6), ("down", 3, 4)):
                sizes[f"{path}.{part}_proj"], sides[f"{path}.{part}_proj"] = 2 * inputs * outputs, [inputs, outputs]

    def counts(scale):
        return {n: min(sizes[n], scale * sum(sides[n]) / math.prod(sides[n]) * sizes[n]) for n in sizes}

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(counts(middle).values()) < density * sum(sizes.values()) else (low, middle)
    return counts(low)


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_erk_counts_are_those_of_fan_in_and_fan_out(sparsity):
    model = nn.ModuleDict({
        "linear": nn.Linear(30, 20), "conv1d": Conv1D(50, 10), "conv": nn.Conv2d(6, 8, 3), "gru": nn.GRU(12, 9),
        "bilinear": nn.Bilinear(7, 6, 5), "experts": experts("Mixtral"),
    })  # fmt: skip
    sparse = attach(model, sgd(model), "static", sparsity=sparsity)
    expected = erk_by_fans(model, 1 - sparsity)
    assert {layer.name for layer in sparse.layers} == expected.keys()
    for layer in sparse.layers:
        assert abs(layer.target - expected[layer.name]) <= 1
        assert int(layer.mask.sum()) == layer.target
