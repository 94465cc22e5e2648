"""What one example says of a network: the work of a step, and how many examples are evaluated at a time."""

import torch
from torch import nn

import cigl.models
from cigl.train.cost import MEMORY, Cost


def test_small_networks_keep_their_batches():
    assert Cost.of(cigl.models.build("wrn-10-2-half", 10, (3, 32, 32)), (3, 32, 32)).evaluation_batch == 500


def test_large_images_come_in_smaller_batches():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    cost = Cost.of(model, (3, 224, 224))
    assert cost.largest == 2 * 16 * 224 * 224 * 4  # into and out of the ReLU
    assert cost.evaluation_batch == MEMORY // (2 * cost.largest)
    assert Cost.of(model, (3, 4000, 4000)).evaluation_batch == 1


def test_the_work_is_that_of_matrix_products():
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    assert Cost.of(model, (100,)).flops == 2 * (100 * 50 + 50 * 10)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(2))
    conv(torch.zeros(1, 3, 6, 6))
    assert Cost.of(conv, (3, 6, 6)).flops == 2 * (36 * 4 * 27 + 36 * 4 * 2)


def test_nothing_is_left_behind_also_by_a_model_that_fails():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    Cost.of(model, (4,))
    failed = Cost.of(model, (7,))
    assert failed.flops == 2 * sum(each.numel() for each in model.parameters())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
