"""Parts of a model that are called apart, one in eval mode and another in training mode, within one step.

The part in eval mode computes with M*W, and the first part in training mode then puts Z in force on all weights. A
backward through the former needs the weights as they were, and torch would say so in words of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cigl.common.errors import CiglError
from cigl.sparsify.loop.binding import Hook
from cigl.sparsify.parameters.layer import Layer


class HasBegun(Protocol):
    @property
    def has_begun(self) -> bool: ...


def explain_backward(module: nn.Module, layers: Sequence[Layer], steps: HasBegun) -> None:
    """At an eval forward of a part, with a graph, before any training forward of the step: look after its backward."""
    own = {id(parameter) for parameter in module.parameters()}
    weights = [layer.parameter for layer in layers if id(layer.parameter) in own]
    versions = [weight._version for weight in weights]

    def check(_: Any) -> None:
        if steps.has_begun and versions != [weight._version for weight in weights]:
            raise CiglError(
                f"a {type(module).__name__} ran in eval mode, and then another part of the model in training mode "
                "within the same step, which changed the weights that this backward needs: put both into the same "
                "mode, call them through the model's own forward, or run the part in eval mode under torch.no_grad()."
            )

    def hook(*call: Any) -> None:
        handle.remove()
        for tensor in tree_leaves(call[-1]):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(check)

    handle = module.register_forward_hook(Hook(hook), always_call=True)
