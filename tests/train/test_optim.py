import math

import pytest
import torch

from cigl.train.config import Config, resolve
from cigl.train.optim import build_optimizer, lr_factor


def test_piecewise_by_hand():
    factor = lr_factor(Config(epochs=10, milestones=[0.3, 0.6], gamma=0.2), 10)
    assert [factor(t) for t in (0, 29, 30, 59, 60, 99)] == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])


def test_cosine_and_constant_by_hand():
    factor = lr_factor(Config(epochs=10, schedule="cosine", lr_end=0.01), 10)
    assert factor(0) == 1
    assert factor(50) == pytest.approx(0.505)
    assert factor(99) == pytest.approx(0.01 + 0.99 / 2 * (1 + math.cos(math.pi * 0.99)))
    assert lr_factor(Config(epochs=10, schedule="constant"), 10)(77) == 1


def test_warm_up_is_linear_and_cosine_starts_after_it():
    factor = lr_factor(Config(epochs=10, warmup_epochs=1.0, schedule="cosine"), 10)
    assert [factor(t) for t in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert factor(10) == 1
    short = lr_factor(Config(epochs=10, warmup_epochs=0.25, schedule="constant"), 10)
    assert max(short(t) for t in range(10)) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimizers(name, kind):
    optimizer = build_optimizer(Config(optimizer=name, lr=0.03, weight_decay=0.02), torch.nn.Linear(2, 2))
    assert type(optimizer) is kind
    assert optimizer.defaults["lr"] == 0.03
    assert optimizer.defaults["weight_decay"] == 0.02
    assert build_optimizer(Config(momentum=0.0), torch.nn.Linear(2, 2)).defaults["nesterov"] is False


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_weight_decay_may_leave_out_biases_and_normalization(name):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
    decays = {}
    for decay_biases in (True, False):
        optimizer = build_optimizer(Config(optimizer=name, weight_decay=0.02, decay_biases=decay_biases), model)
        of = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        decays[decay_biases] = [of[id(p)] for p in model.parameters()]
    assert decays == {True: [0.02] * 6, False: [0.02, 0, 0, 0, 0.02, 0]}


def test_presets_give_the_learning_rates_of_their_sources():
    """The steps and rates of the table in docs/methods.md: of 391 or 352 steps per epoch."""
    rate = {}
    for preset, steps in (
        ("cifar10-wrn-22-2", 391),
        ("cifar10-wrn-22-2-reproduction", 352),
        ("cifar10-wrn-22-2-released", 352),
    ):
        config = resolve(preset=preset)
        factor = lr_factor(config, steps)
        rate[preset] = [round(config.lr * factor(t), 6) for t in (29_000, 31_000, 59_000, 61_000, 87_900, 95_000)]
        assert factor(30_100) < factor(29_900)
        assert factor(60_100) < factor(59_900)
    text, reproduction, released = rate.values()
    assert text == [0.1, 0.02, 0.02, 0.004, 0.004, 0.0008]
    assert reproduction[:5] == [0.1, 0.02, 0.02, 0.004, 0.004]
    assert released[:5] == [0.1, 0.05, 0.05, 0.025, 0.025]
    resnet = resolve(preset="cifar100-resnet50-released")
    factor = lr_factor(resnet, 352)
    assert [round(0.3 * factor(t), 6) for t in (879, 21_700, 21_800, 81_800)] == [0.15, 0.3, 0.15, 0.01875]
    assert (resnet.model, resnet.dataset, resnet.weight_decay, resnet.decay_biases) == (
        "resnet50",
        "cifar100",
        1e-4,
        False,
    )
