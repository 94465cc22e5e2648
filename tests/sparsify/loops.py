"""The user's side: small models, small data and a plain training loop, shared by the tests."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import cigl
from cigl.sparsify.parameters.geometry import UnitLayout

LARGE_MASKS = {  # a Z of one rate, and one that rises in 10 of 40 steps to a rate per layer
    "cigl": cigl.method("cigl", random_mask=0.3, update_every=3),
    "cigl-rise": cigl.method("cigl-rise", random_mask=cigl.rise(0.6, until=0.25), fan_in_factor=0.4, update_every=3),
}


def mlp(normalise: bool = False, inputs: int = 12, hidden: int = 24, classes: int = 4) -> nn.Module:
    norm = [nn.BatchNorm1d(hidden)] if normalise else []
    return nn.Sequential(nn.Linear(inputs, hidden), *norm, nn.ReLU(), nn.Linear(hidden, classes))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 4),
    )  # fmt: skip


def batch(step: int, shape: tuple[int, ...] = (16, 12), classes: int = 4) -> tuple[Tensor, Tensor]:
    """The data of one step, always the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(shape, generator=generator)
    return x, x.flatten(1)[:, :classes].argmax(1)


def fans(layout: UnitLayout, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Fan-in and fan-out of a whole mask."""
    return layout.fans_at(mask.flatten().nonzero().squeeze(1), tuple(mask.shape))


def attach(model: nn.Module, optimizer: Optimizer, method: str | cigl.Method = "cigl", **options):
    """cigl.attach with settings that make much happen in few steps, and without its warnings."""
    defaults = {"sparsity": 0.7, "epochs": 10, "steps_per_epoch": 4}
    if isinstance(method, str) and cigl.method(method).update_every is not None:
        defaults["update_every"] = 3
    if isinstance(method, cigl.Method) and method.fan_in_factor is not None:
        defaults["sparsity"] = 0.4  # so that units have enough inputs left for a Z in each layer
    if method == "dense":
        defaults["sparsity"] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cigl.CiglWarning)
        return cigl.attach(model, optimizer, method, **(defaults | options))


def sgd(model: nn.Module, **options) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **({"lr": 0.05} | options))


def step(model: nn.Module, optimizer: Optimizer, number: int, shape: tuple[int, ...] = (16, 12)) -> float:
    x, y = batch(number, shape)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(
    model: nn.Module, optimizer: Optimizer, steps: int, first: int = 1, one: Callable[..., float] = step
) -> Iterator[int]:
    """Train and yield after each step."""
    for number in range(first, first + steps):
        one(model, optimizer, number)
        yield number


def run(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 1, **options) -> None:
    for _ in train(model, optimizer, steps, first, **options):
        pass


def assert_zero_outside(sparse: cigl.Sparsifier) -> None:
    """Inactive weights, their gradients and their optimizer state are exactly zero."""
    for layer in sparse.layers:
        outside = ~layer.mask
        tensors = {"weight": layer.weight} | {s.name: s.tensor - s.of_zero for s in layer.states()}
        if layer.parameter.grad is not None:
            tensors["gradient"] = layer.parameter.grad
        for what, tensor in tensors.items():
            assert tensor[outside].eq(0).all(), f"{what} of {layer.name}"


def states_equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def fresh(method, optimizer="sgd", seed=0, **options):
    """A model with batch norm, its optimizer and its sparsifier, always from the same initialisation."""
    torch.manual_seed(0)
    model = mlp(normalise=True)
    kinds = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
    }
    opt = kinds[optimizer]()
    return model, opt, attach(model, opt, method, seed=seed, **options)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # tensors and plain values only


def saved(model, optimizer, sparse):
    return through_a_file((model.state_dict(), optimizer.state_dict(), sparse.state_dict()))
