"""Evaluation takes as many examples at a time as memory allows."""

import torch
from torch import nn

import cigl.models
from cigl.train.evaluation_batch import MEMORY, bytes_of_largest_layer, evaluation_batch


def test_small_networks_keep_their_batches():
    assert evaluation_batch(cigl.models.build("wrn-10-2-half", 10, (3, 32, 32)), (3, 32, 32)) == 500


def test_large_images_come_in_smaller_batches():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    largest = bytes_of_largest_layer(model, (3, 224, 224))
    assert largest == 2 * 16 * 224 * 224 * 4  # into and out of the ReLU
    assert evaluation_batch(model, (3, 224, 224)) == MEMORY // (2 * largest)
    assert evaluation_batch(model, (3, 4000, 4000)) == 1


def test_nothing_is_left_behind():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    evaluation_batch(model, (4,))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in model.modules())
