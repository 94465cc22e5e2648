"""The active weights of layers that are joined, against each layer by itself and against numpy."""

import numpy as np
import pytest
import torch
from loops import attach, sgd
from numpy_reference import switched_off
from torch import nn

from cigl.sparsify.parameters.active import ActiveWeights


@pytest.fixture(params=[torch.contiguous_format, torch.channels_last])
def layers(request):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1)).to(memory_format=request.param)
    return attach(model, sgd(model), "cigl", sparsity=0.7).layers


RATES = [0.2, 0.5, 0.0]


def test_joined_layers_draw_what_each_draws_by_itself(layers):
    joined = ActiveWeights(layers, [layer.count for layer in layers])
    on = joined.draw(3, "z", 11, RATES)
    for number, (layer, rate) in enumerate(zip(layers, RATES, strict=True)):
        alone = ActiveWeights([layer], [layer.count]).draw(3, "z", 11, [rate])
        assert torch.equal(on[joined.span(number)], alone)
        active = np.flatnonzero(layer.mask)
        assert np.array_equal(alone == 0, switched_off(active, rate, 3, "z", 11, layer.name))
        kept = joined.kept(on)[number]
        assert kept.stride() == layer.weight.stride()
        assert np.array_equal(np.flatnonzero(kept), active[alone.numpy() != 0])


def test_joined_layers_are_read_and_written_in_place(layers):
    joined = ActiveWeights(layers, [layer.count for layer in layers])
    weights = [layer.weight for layer in layers]
    transposed = [torch.empty_like(w, memory_format=torch.contiguous_format).copy_(w) for w in weights]
    before = joined.read(weights)
    assert torch.equal(before, joined.read(transposed))  # whatever the memory layout
    for tensors in (weights, transposed):
        assert torch.equal(joined.write(tensors, lambda now: now + 1), before)
        for layer, tensor in zip(layers, tensors, strict=True):
            mask = layer.mask
            assert torch.equal(tensor[~mask], torch.zeros_like(tensor[~mask]))
        assert torch.equal(joined.read(tensors), before + 1)


def test_what_stays_on_is_left_out_on_the_cpu(layers):
    active = ActiveWeights([layers[0]], [layers[0].count])
    on = active.draw(3, "z", 11, [0.3])
    narrowed, off = active.narrowed(on)
    assert len(off) == int((on == 0).sum()) > 0
    assert not off.any()
    assert torch.equal(narrowed.read([layers[0].weight]), active.read([layers[0].weight])[on == 0])


def test_on_the_cpu_nothing_is_joined(layers):
    assert [len(each.layers) for each in ActiveWeights.of(layers)] == [1, 1, 1]
