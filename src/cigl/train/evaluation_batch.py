"""How many examples are evaluated at a time: as many as fit in a bounded amount of memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from cigl.calibrate.reports.evaluation import evaluating

MOST = 500
MEMORY = 512 << 20  # bytes, for what a batch needs beside the model


def evaluation_batch(model: nn.Module, shape: tuple[int, ...]) -> int:
    """At most 500, and fewer where a layer's input and output are large.

    >>> evaluation_batch(nn.Linear(10, 2), (10,)), evaluation_batch(nn.Conv2d(3, 64, 3), (3, 224, 224))
    (500, 20)
    """
    return max(1, min(MOST, MEMORY // max(1, 2 * bytes_of_largest_layer(model, shape))))


def bytes_of_largest_layer(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Input and output of one example, of the layer where they are largest."""
    largest = 4 * torch.Size(shape).numel()

    def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal largest
        seen = [*inputs, *(output if isinstance(output, (tuple, list)) else [output])]
        largest = max(largest, sum(each.nbytes for each in seen if isinstance(each, Tensor)))

    layers = [module for module in model.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(look) for module in layers]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model, None), torch.no_grad(), suppress(Exception):  # what is wrong is said when it is trained
            model(torch.zeros(1, *shape, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return largest
