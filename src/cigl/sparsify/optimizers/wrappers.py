"""The optimizer that a user has, perhaps inside wrappers: whose step() is a training step, and who keeps state.

    AcceleratedOptimizer(SGD)      SGD steps: the wrapper may skip it, while gradients accumulate
    SAM(SGD), in two steps         SGD steps: once per first_step() and second_step()
    Lookahead(SGD)                 Lookahead steps: it writes weights after SGD has; both keep state
    ZeroRedundancyOptimizer(SGD)   the wrapper steps, and sends weights around; SGD keeps the state of this process

What can't be followed is refused here, before anything has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer, SparseAdam

from cigl.common.errors import CiglError

_INSIDE = ("optimizer", "base_optimizer", "optim", "_optimizer", "_base_optimizer")  # where wrappers keep theirs


@dataclass(frozen=True)
class OptimizerChain:
    """An optimizer and those inside it, from the outermost to the innermost."""

    optimizers: tuple[Optimizer, ...]
    stepping: Optimizer  # whose step() is a training step

    @property
    def stateful_optimizers(self) -> tuple[Optimizer, ...]:
        """Each optimizer with a state of its own: a wrapper may show that of the one inside it."""
        own = {id(optimizer.state): optimizer for optimizer in self.optimizers if hasattr(optimizer, "state")}
        return tuple(own.values())

    @property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimizers[0].param_groups
        return groups


def resolve_optimizer(optimizer: Any) -> OptimizerChain:
    """Look through wrappers, or refuse."""
    if not isinstance(optimizer, Optimizer):
        raise CiglError(
            f"{type(optimizer).__name__} is not a torch.optim.Optimizer, so its steps can't be followed: "
            "attach takes a torch.nn.Module and a torch.optim.Optimizer, in this order."
        )
    chain = tuple(_chain(optimizer))
    for part in chain:
        if reason := _refusal(part):
            raise CiglError(f"{type(part).__name__} {reason}: choose another optimizer.")
    for part, inside in zip(chain, (*chain[1:], None), strict=True):
        if _reports_steps(part) and not (_steps_twice(part) and inside is not None):
            return OptimizerChain(chain, part)
    raise CiglError(
        f"the steps of {type(optimizer).__name__} can't be followed, because it has no step hooks: call "
        "torch.optim.Optimizer's __init__ in its own, or give cigl.attach the optimizer inside it."
    )


def check_held(chain: OptimizerChain, parameters: list[tuple[str, Tensor]]) -> None:
    """Every trainable parameter must be in the optimizer."""
    held = {id(p) for group in chain.groups for p in group["params"]}
    missing = [name for name, p in parameters if p.requires_grad and id(p) not in held]
    if len(missing) == len(parameters):
        raise CiglError(
            "the optimizer holds none of the model's weights: build it from this model's parameters (after "
            "any copying or moving of the model)."
        )
    if missing:
        raise CiglError(
            f"the optimizer does not hold {missing[0]} ({len(missing)} such weights): add it to the optimizer, "
            f"freeze it, or leave it dense with layers={{{missing[0]!r}: False}}."
        )


def check_under_random_mask(chain: OptimizerChain) -> None:
    """What can't be followed where Z switches weights off."""
    if any(group.get("slice_p", 1) > 1 for group in chain.groups):  # Prodigy
        raise CiglError(
            f"{type(chain.stepping).__name__} with slice_p above 1 keeps every n-th of the first weights alone, "
            "which can't be corrected for the random mask: use slice_p=1, or a method without a random mask."
        )


def load_hooks(chain: OptimizerChain, function: Any) -> Iterable[Any]:
    """Handles of ``function``, called after the state of any of the optimizers was loaded."""
    for optimizer in chain.optimizers:
        if "_optimizer_load_state_dict_post_hooks" in vars(optimizer):
            yield optimizer.register_load_state_dict_post_hook(function)


def _chain(optimizer: Optimizer) -> Iterator[Optimizer]:
    seen: set[int] = set()
    inside: Optimizer | None = optimizer
    while inside is not None and id(inside) not in seen:
        seen.add(id(inside))
        yield inside
        held = (getattr(inside, name, None) for name in _INSIDE)
        inside = next((part for part in held if isinstance(part, Optimizer)), None)


def _refusal(optimizer: Optimizer) -> str:
    if isinstance(optimizer, LBFGS):
        return "moves inactive weights within a step"
    if isinstance(optimizer, SparseAdam):
        return "needs sparse gradients, which masks can't be applied to"
    if hasattr(optimizer, "fused_backward"):  # LOMO
        return "moves weights during the backward pass, so that there is no step to follow"
    if getattr(optimizer, "_overlap_with_ddp", False):
        return "with overlap_with_ddp=True moves weights during the backward pass, so that there is no step to follow"
    if type(optimizer).__name__ == "TRAC":
        return "keeps a copy of the first weights where it can't be masked, and returns to it"
    return ""


def _reports_steps(optimizer: Optimizer) -> bool:
    """Whether its step() calls hooks: not where a wrapper has skipped torch's __init__."""
    patched = getattr(type(optimizer).step, "hooked", False)
    return bool(patched) and "_optimizer_step_pre_hooks" in vars(optimizer)


def _steps_twice(optimizer: Optimizer) -> bool:
    """SAM: a step is first_step() and second_step(), and the optimizer inside steps in the second."""
    return hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step")
