"""The optimizer's step on the active weights alone, for torch's own SGD, Adam and AdamW.

Everything outside a weight's pattern is zero and stays so: value, gradient and optimizer state. So the optimizer need
not see it. The gradient is out of its sight while it runs, and the same formulas move the entries of the pattern, in
the same parameter and the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import SGD, Adam, AdamW, Optimizer

from cigl.runtime.program import library
from cigl.runtime.training.patterns import Pattern, address


@dataclass(frozen=True)
class Hidden:
    """A weight that the optimizer does not see in its step."""

    parameter: nn.Parameter
    gradient: Tensor
    pattern: Pattern
    group: dict[str, Any]


class ActiveUpdates:
    """Between the optimizer's hooks: ``begin`` before its step, ``end`` after it."""

    def __init__(self) -> None:
        self._hidden: list[Hidden] = []

    def begin(self, optimizer: Optimizer, patterns: Iterable[tuple[nn.Parameter, Pattern]]) -> None:
        """Take over what can be: parameters with ``patterns``, whose gradients are masked. Not where others look on."""
        self.restore()
        watched = len(optimizer._optimizer_step_pre_hooks) > 1 or len(optimizer._optimizer_step_post_hooks) > 1
        if type(optimizer) not in _MOVE or watched or getattr(optimizer, "found_inf", None) is not None:
            return
        wanted = dict(patterns)
        for group in optimizer.param_groups:
            if not _is_plain(group):
                continue
            for parameter in group["params"]:
                pattern, gradient = wanted.get(parameter), parameter.grad
                if pattern is None or gradient is None:
                    continue
                if _FITS[type(optimizer)](group, optimizer.state.get(parameter, {}), parameter):
                    self._hidden.append(Hidden(parameter, gradient, pattern, group))
                    parameter.grad = None

    def has(self, parameter: nn.Parameter) -> bool:
        """Whether this parameter is moved here, in the step under way."""
        return any(entry.parameter is parameter for entry in self._hidden)

    def end(self, optimizer: Optimizer) -> None:
        hidden = list(self._hidden)
        self.restore()
        for entry in hidden:
            if entry.parameter.grad is entry.gradient:  # not another one, of a closure
                _MOVE[type(optimizer)](entry, optimizer.state[entry.parameter])
                increment_version(entry.parameter)

    def restore(self) -> None:
        """Give the gradients back."""
        for entry in self._hidden:
            if entry.parameter.grad is None:
                entry.parameter.grad = entry.gradient
        self._hidden.clear()


def _is_plain(group: dict[str, Any]) -> bool:
    known = "decoupled_weight_decay" in group or "dampening" in group  # else an Adam of an older torch
    return known and not (group.get("amsgrad") or group.get("differentiable") or group.get("capturable"))


def _alike(parameter: Tensor, *states: Any) -> bool:
    """Whether one number per place means the same in all of them."""
    places = _places(parameter)
    return all(isinstance(s, Tensor) and s.dtype == torch.float32 and s.is_cpu and _places(s) == places for s in states)


def _places(tensor: Tensor) -> list[tuple[int, int]]:
    """Where its elements are. The stride of a dimension of one says nothing, and a checkpoint may bring another."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _sgd_fits(group: dict[str, Any], state: dict[str, Any], parameter: Tensor) -> bool:
    states = [state.get("momentum_buffer")] if group["momentum"] else []
    return _alike(parameter, parameter.grad, *states)  # the first step makes the momentum, in torch


def _adam_fits(group: dict[str, Any], state: dict[str, Any], parameter: Tensor) -> bool:
    return "step" in state and _alike(parameter, parameter.grad, state.get("exp_avg"), state.get("exp_avg_sq"))


def _sgd(entry: Hidden, state: dict[str, Any]) -> None:
    group, pattern = entry.group, entry.pattern
    momentum = state["momentum_buffer"].data_ptr() if group["momentum"] else None
    library.get().cigl_sgd(
        entry.parameter.data_ptr(),
        entry.gradient.data_ptr(),
        momentum,
        *(pattern.places.ctypes.data, address(pattern.off), pattern.count),
        *(float(group[name]) for name in ("lr", "momentum", "dampening", "weight_decay")),
        *(bool(group["nesterov"]), bool(group["maximize"]), torch.get_num_threads()),
    )


def _adam(entry: Hidden, state: dict[str, Any]) -> None:
    group, pattern = entry.group, entry.pattern
    state["step"] += 1
    library.get().cigl_adam(
        entry.parameter.data_ptr(),
        entry.gradient.data_ptr(),
        *(state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr()),
        *(pattern.places.ctypes.data, address(pattern.off), pattern.count, float(state["step"])),
        *(float(group["lr"]), *map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"])),
        *(bool(group["decoupled_weight_decay"]), bool(group["maximize"]), torch.get_num_threads()),
    )


_FITS: dict[type[Optimizer], Callable[[dict[str, Any], dict[str, Any], Tensor], bool]] = {
    SGD: _sgd_fits,
    Adam: _adam_fits,
    AdamW: _adam_fits,
}
_MOVE: dict[type[Optimizer], Callable[[Hidden, dict[str, Any]], None]] = {SGD: _sgd, Adam: _adam, AdamW: _adam}
