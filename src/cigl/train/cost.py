"""What a network costs, found out by one example: work for threads, and memory for a batch that is evaluated."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cigl.calibrate.reports.evaluation import evaluating
from cigl.common.batches import device_of

MOST = 500  # examples that are evaluated at a time
MEMORY = 512 << 20  # bytes, for what these need beside the model


class Cost(NamedTuple):
    """Of a forward pass of the dense network on one example."""

    flops: float
    largest: int  # bytes into and out of the layer where they are most

    @property
    def evaluation_batch(self) -> int:
        """At most 500 examples, and fewer where a layer's input and output are large.

        >>> [Cost.of(nn.Conv2d(3, 64, 3), (3, size, size)).evaluation_batch for size in (32, 224)]
        [500, 20]
        """
        return max(1, min(MOST, MEMORY // max(1, 2 * self.largest)))

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> Cost:
        """What can't be known of a user's model, which will say what is wrong with it as it trains, is estimated."""
        from torch.utils.flop_counter import FlopCounterMode

        largest = 4 * torch.Size(shape).numel()
        flops = 2.0 * sum(each.numel() for each in model.parameters())

        def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            nonlocal largest
            seen = [*inputs, *(output if isinstance(output, (tuple, list)) else [output])]
            largest = max(largest, sum(each.nbytes for each in seen if isinstance(each, Tensor)))

        layers = [module for module in model.modules() if not any(module.children())]
        hooks = [module.register_forward_hook(look) for module in layers]
        try:
            with suppress(Exception), evaluating(model, None), torch.no_grad(), FlopCounterMode(display=False) as count:
                model(torch.zeros(1, *shape, device=device_of(model)))
                flops = float(count.get_total_flops())
        finally:
            for hook in hooks:
                hook.remove()
        return cls(flops, largest)
