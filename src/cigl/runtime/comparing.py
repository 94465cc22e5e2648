"""Whether an engine computes what its model does: its first outputs are compared with the module's in torch.

What is captured is not all that a forward may do, and kernels may be wrong. So an engine keeps the module it was made
from until it was called for the first time. (Its parameters are those that the engine had taken anyway; they are freed
with it.) Inputs of other kinds, which come later, are compared with the captured graph in torch.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cigl.runtime.compile.tracing import sharing_parameters
from cigl.runtime.layers import without_engines

TOLERANCE = 1e-4  # of the largest value
_FLIPPED = 1e-3  # share of whole numbers and truth values, as those of argmax, that rounding may change


def twin(model: nn.Module) -> nn.Module:
    """A copy with the same parameters, for plain torch."""
    return without_engines(sharing_parameters(model))


@torch.no_grad()
def outputs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Of a call that leaves its inputs as they are."""
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, (tuple(args), dict(kwargs)))
    return model(*args, **kwargs)


def agree(ours: Any, theirs: Any) -> bool:
    """Whether outputs differ by rounding alone.

    >>> agree((torch.ones(2), 3), (torch.ones(2) + 1e-6, 3)), agree(torch.ones(2), torch.zeros(2))
    (True, False)
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):  # of two classes, as a file's and the model's own
        return list(ours) == list(theirs) and all(agree(ours[key], theirs[key]) for key in ours)
    left, right = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    return len(left) == len(right) and all(map(_agree, left, right))


def _agree(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, Tensor) or not isinstance(ours, Tensor):
        plain = (bool, int, float, str, type(None))
        return isinstance(ours, Tensor) == isinstance(theirs, Tensor) and (
            not isinstance(theirs, plain) or ours == theirs or ours != ours
        )
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if not ours.numel():
        return True
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return int((ours != theirs).sum()) <= _FLIPPED * ours.numel()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())  # infinities, too
    finite = theirs.isfinite()
    if bool((~same & ~(finite & ours.isfinite())).any()):
        return False
    largest = theirs[finite].abs().max() if bool(finite.any()) else theirs.new_zeros(())
    return not bool(((ours - theirs).abs()[~same] > TOLERANCE * largest).any())


@contextmanager
def drawing_from(state: Tensor) -> Iterator[None]:
    """What draws random numbers draws those that follow this state; afterwards nothing was drawn."""
    now, pythons = torch.get_rng_state(), random.getstate()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)
        random.setstate(pythons)


def repeats(call: Callable[[], Any], state: Tensor) -> bool:
    """Whether two calls are alike: random numbers that are not torch's own, for one, make them differ."""
    return agree(*(_drawn(call, state) for _ in range(2)))


def is_random(call: Callable[[], Any], state: Tensor) -> bool:
    """Whether it draws torch's random numbers, and nothing else makes two calls differ."""
    other = torch.Generator().manual_seed(1).get_state()
    return repeats(call, state) and not agree(_drawn(call, state), _drawn(call, other))


def _drawn(call: Callable[[], Any], state: Tensor) -> Any:
    with drawing_from(state):
        return call()


def kind_of(inputs: Any) -> Any:
    """What inputs have in common that are compared once: their structure, types and dimensions, but no sizes."""
    leaves, structure = pytree.tree_flatten(inputs)
    return structure, *kinds(leaves)


def kinds(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((each.dtype, each.dim()) if isinstance(each, Tensor) else type(each) for each in leaves)


class Comparison:
    """What an engine is compared with, and with inputs of which kinds it was. Copies of an engine share it."""

    def __init__(self, model: nn.Module, hint: str = ""):
        self.model: nn.Module | None = model  # until it was right once
        self.hint = hint
        self._kinds: set[Any] = set()
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Another process may not have the model's class, and gets no dense weights."""
        return {**vars(self), "model": None, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lock = threading.RLock()

    def knows(self, kind: Any) -> bool:
        return kind in self._kinds

    def passed(self, kind: Any) -> None:
        self._kinds.add(kind)
        self.model = None
