import math

import pytest
import torch

from cigl.train.config import Config
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
