"""Whatever stays dense is said: at attach, when it is unfrozen, when it is added."""

import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loops import attach, mlp, run, sgd
from torch import nn

import cigl
from cigl import CiglError, CiglWarning
from cigl.sparsify.parameters.select import select, warn_of_dense_majority


def said(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [str(warning.message) for warning in found if issubclass(warning.category, CiglWarning)]


def choose(model, layers=None):
    """As cigl.attach does."""
    warn_of_dense_majority(model, select(model, layers), layers or {})


def words(rows=100):
    return nn.ModuleDict({"words": nn.Embedding(rows, 8), "fc": nn.Linear(8, 8)})


def test_less_than_half_names_the_largest_that_stays_dense():
    (message,) = said(lambda: choose(words()))
    assert message.startswith("only 7.4 % of the model's matrix weights are made sparse")
    assert "words.weight (800 weights): make it sparse too with layers={'words.weight': True}" in message
    assert said(lambda: choose(words(8))) == []  # exactly half
    assert said(lambda: choose(words(), {"words": False})) == []  # meant to be dense
    assert said(lambda: choose(words(), {"words": True})) == []


def test_what_is_frozen_or_parametrized_is_told_how_to_become_sparse():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    model[0].weight.requires_grad_(False)
    (message,) = said(lambda: choose(model))
    assert "0.weight (64 weights): unfreeze it before cigl.attach" in message
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 2))
    computed, message = said(lambda: choose(model))
    assert computed.startswith("the weight of 0 is computed from other parameters")
    assert "remove its parametrization" in message


def test_biases_and_norms_of_several_dimensions_are_no_weights():
    model = nn.ModuleDict({"norm": nn.LayerNorm((40, 40)), "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True)})
    assert said(lambda: choose(model)) == []
    assert {s.name for s in select(model, {"*": True})} == {"attention.in_proj_weight", "attention.out_proj.weight"}


def test_without_sparsity_nothing_is_missing():
    model = words()
    times = {"epochs": 1, "steps_per_epoch": 2}
    assert said(lambda: cigl.attach(model, sgd(model), "dense", sparsity=0, **times)) == []
    assert "only 7.4 %" in said(lambda: cigl.attach(model := words(), sgd(model), "static", sparsity=0.5, **times))[0]


def test_true_takes_part_in_the_distribution():
    model = words()
    sparse = attach(model, sgd(model), "static", sparsity=0.9, layers={"words": True}, distribution="uniform")
    assert {layer.name: layer.target for layer in sparse.layers} == {"words.weight": 80, "fc.weight": 6}
    again = attach(model := words(), sgd(model), "static", sparsity=0.9, layers={"*": 0.5, "words": True})
    assert {layer.name: layer.target for layer in again.layers} == {"words.weight": 54, "fc.weight": 32}


def test_a_weight_that_is_unfrozen_after_attach_is_said_to_stay_dense():
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparse = attach(model, optimizer, "static")
    assert said(lambda: run(model, optimizer, 3)) == []
    model[0].weight.requires_grad_(True)
    (message,) = said(lambda: run(model, optimizer, 20, first=4))
    assert message.startswith("0.weight was frozen or not yet in the model when cigl.attach was called")
    assert not any("0.weight" in message for message in said(sparse.finalize))  # once


def test_a_weight_that_was_unfrozen_just_before_finalize_is_said_too():
    model = mlp()
    model[0].weight.requires_grad_(False)
    sparse = attach(model, sgd(model), "static")
    run(model, sparse.optimizer, 2)
    model[0].weight.requires_grad_(True)
    assert any(message.startswith("0.weight was frozen") for message in said(sparse.finalize))


def test_what_is_meant_to_be_dense_may_be_unfrozen():
    model = mlp()
    model[0].weight.requires_grad_(False)
    sparse = attach(model, sgd(model), "static", layers={"0": False})
    model[0].weight.requires_grad_(True)
    assert not any("0.weight" in message for message in said(sparse.finalize))


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.more = mlp(), nn.ModuleList()

    def forward(self, x):
        y = self.body(x)
        for layer in self.more:
            y = layer(y)
        return y

    def grow(self, optimizer):
        self.more.append(nn.Linear(4, 4))
        optimizer.add_param_group({"params": self.more[-1].parameters()})


def test_a_layer_added_before_averaging_is_dense_and_averaged():
    model = Growing()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", epochs=10, steps_per_epoch=4)
    run(model, optimizer, 4)
    model.grow(optimizer)
    (message,) = said(lambda: run(model, optimizer, 36, first=5))
    assert message.startswith("more.0.weight was frozen or not yet in the model")
    assert sparse.finalize().more[0].weight.ne(0).all()


@pytest.mark.parametrize("method", ["cigl", "cigl-no-wma"])
def test_a_layer_added_while_averaging_is_refused_in_a_sentence(method):
    model = Growing()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, method, epochs=10, steps_per_epoch=4)
    run(model, optimizer, 36)
    assert sparse.collection.count == 1
    model.grow(optimizer)
    with pytest.raises(CiglError, match=r"more.0.bias was added to the model after the first snapshot was taken"):
        run(model, optimizer, 4, first=37)
    assert sparse.collection.count == 1


def test_a_layer_that_was_removed_is_named():
    model = Growing()
    sparse = attach(model, sgd(model), "static")
    model.body = nn.Linear(12, 4)
    with pytest.raises(CiglError, match=r"body.0.weight was removed from the model after cigl.attach"):
        sparse.finalize()


def test_an_empty_layer_is_named():
    model = mlp(hidden=64)
    with pytest.warns(CiglWarning, match=r"leaves no weight in 2.weight"):
        cigl.attach(model, sgd(model), "static", sparsity=0.999, epochs=1, steps_per_epoch=2)


KINDS = {
    "linear": lambda a, b: nn.Linear(a, b),
    "conv": lambda a, b: nn.Conv2d(a, b, 3),
    "up": lambda a, b: nn.ConvTranspose1d(a, b, 2),
    "lstm": lambda a, b: nn.LSTM(a, b),
    "gru": lambda a, b: nn.GRUCell(a, b),
    "bilinear": lambda a, b: nn.Bilinear(a, 3, b),
    "embedding": lambda a, b: nn.Embedding(a, b),
    "own": lambda a, b: nn.ParameterList([torch.randn(2, a, b)]),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(4, 12), st.integers(4, 12)), min_size=1, max_size=6),
    st.dictionaries(
        st.sampled_from(["0*", "1*", "2*", "*_hh*", "*.weight", "*"]), st.sampled_from([True, False, "density"])
    ),
    st.floats(0, 0.9),
    st.sampled_from(["uniform", "er", "erk"]),
)
def test_counts_add_up_for_random_models_and_globs(pieces, globs, sparsity, law):
    """A glob to the density that the sparsity leaves anyway never fails by rounding, whatever the layers."""
    model = nn.ModuleList([KINDS[kind](a, b) for kind, a, b in pieces])
    layers = {glob: 1 - sparsity if choice == "density" else choice for glob, choice in globs.items()}
    try:
        sparse = attach(model, sgd(model), "static", sparsity=sparsity, layers=layers, distribution=law)
    except CiglError as error:
        assume(not any(text in str(error) for text in ("matches no weight", "nothing to make sparse")))
        raise
    total = round((1 - sparsity) * sum(layer.size for layer in sparse.layers))
    assert sum(layer.target for layer in sparse.layers) == total
    for layer in sparse.layers:
        assert int(layer.mask.sum()) == layer.target
        assert layer.weight[~layer.mask].eq(0).all()
        if layer.selected.density is not None:
            assert abs(layer.target - layer.selected.density * layer.size) <= 1.5
