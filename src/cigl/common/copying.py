"""A user's model without what torch puts around it; and copies of it, also where it keeps what it has computed (torch's
own deep copy refuses such tensors)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from cigl.common.errors import CiglError
from cigl.common.text import one_line


def unwrap(model: nn.Module, *, in_training: bool = False) -> nn.Module:
    """The user's own module inside ``torch.compile``, DistributedDataParallel and, but ``in_training``, DataParallel.

    >>> layer = nn.Linear(2, 2)
    >>> unwrap(DataParallel(layer)) is layer
    True
    """
    while True:
        if in_training and isinstance(model, DataParallel):
            raise CiglError("DataParallel copies the weights before the masks act: use DistributedDataParallel.")
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


class _Copying(TorchFunctionMode):
    """Tensors (but parameters) are deep-copied by this function, wherever they are held."""

    def __init__(self, copied: Callable[[Tensor, dict[int, Any]], Tensor]):
        super().__init__()
        self._copied = copied

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._copied(*args) if func is Tensor.__deepcopy__ else func(*args, **(kwargs or {}))


def _detached(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A tensor with a graph (``self.features = h`` in a forward) is copied without it."""
    if not tensor.is_leaf:
        return tensor.detach().clone()
    copied: Tensor = Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]
    return copied


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """``copy.deepcopy``, with stored activations detached; what still can't be copied is named.

    Args:
        model: The model.
        memo: As for ``copy.deepcopy``: what takes the place of objects with these ids.
    """
    if name := _computed(model):
        raise CiglError(
            f"the model can't be copied ({name} is computed from other tensors, and a copy would hold an old value): "
            "make pruning and old-style weight_norm or spectral_norm permanent first (torch.nn.utils.prune.remove, "
            "remove_weight_norm, remove_spectral_norm)."
        )
    try:
        with _Copying(_detached):
            return copy.deepcopy(model, {} if memo is None else memo)
    except Exception as error:  # anything can be an attribute
        raise CiglError(
            f"the model can't be copied ({_culprit(model) or one_line(error)}): keep outside of it what is not a "
            "tensor, a module or plain data, or give it a __deepcopy__."
        ) from error


def _computed(model: nn.Module) -> str:
    """A weight of one of torch's layers that something puts there before each forward."""
    for name, value in _attributes(model):
        held = value if isinstance(value, list) else [value]  # _flat_weights of a recurrent layer
        if any(isinstance(each, Tensor) and not each.is_leaf for each in held):
            owner, _, attribute = name.rpartition(".")
            is_weight = "weight" in attribute or "bias" in attribute
            if is_weight and type(model.get_submodule(owner)).__module__.startswith("torch.nn."):
                return name
    return ""


def uncopyable(model: nn.Module) -> str:
    """What ``deep_copy`` would fail at, "" if nothing: a trial without the tensors, so it takes no memory for them."""
    memo: dict[int, Any] = {id(each): each for each in [*model.parameters(), *model.buffers()]}
    if name := _computed(model):
        return f"{name} is computed from other tensors"
    try:
        with _Copying(lambda tensor, _: tensor):
            copy.deepcopy(model, memo)
    except Exception as error:
        return _culprit(model) or one_line(error)
    return ""


def _culprit(model: nn.Module) -> str:
    """The attribute that can't be copied, and why."""
    memo: dict[int, Any] = {id(each): each for each in model.modules()}
    for name, value in _attributes(model):
        try:
            with _Copying(lambda tensor, _: tensor):
                copy.deepcopy(value, dict(memo))
        except Exception as error:
            return f"{name}: {one_line(error, 160)}"
    return ""


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            yield f"{path}.{name}" if path else name, value
