"""Gradients on sparse kernels are those of dense torch, from the same state, on random networks."""

import copy

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from training_nets import ISAS, LAYERS, Taken, doubled, drawn_nets, on_kernels, settings_of, step, thin

pytestmark = pytest.mark.skipif(not ISAS, reason="no kernels")


def compare(model: nn.Module, masks, *inputs, isa="", threads=1, seed=0, least=1) -> Taken:
    """Torch in float64 and in float32, and kernels, from the same state."""
    names = {name: masks[p] for name, p in model.named_parameters() if p in masks}
    exact = step(doubled(model), *(x.detach().double().requires_grad_(x.requires_grad) for x in inputs), seed=seed, masks=names)
    single = step(copy.deepcopy(model), *inputs, seed=seed, masks=names)
    assume(single.difference(exact)[0] < 1e-5)  # else it is the case that is ill-conditioned
    with settings_of(isa, threads):
        kernels = on_kernels(model, masks)
        sparse = step(model, *inputs, seed=seed)
        in_torch = {name: mask for name, mask in names.items() if dict(model.named_parameters())[name] not in kernels.sparse}
        for name in in_torch.keys() & sparse.tensors.keys():  # those are masked later, by the sparsifier
            sparse.tensors[name] = sparse.tensors[name] * in_torch[name]
        assert sum(p in kernels.sparse for p in masks) >= least, kernels.reasons
        kernels.remove()
    apart, where = sparse.difference(exact)
    assert apart < 1e-4, (apart, where)
    return sparse


@settings(max_examples=150, deadline=None)
@given(drawn_nets(), st.sampled_from(ISAS), st.integers(1, 2))
def test_gradients_are_those_of_torch(drawn, isa, threads):
    assume(drawn is not None)
    model, masks, x = drawn
    compare(model, masks, x, isa=isa, threads=threads)
