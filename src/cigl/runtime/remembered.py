"""Example inputs of models that the package has called itself, so that nobody must pass them again.

They are held outside of the models, as long as these live: they are in no state_dict, no copy and no pickle.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cigl.runtime.compile.exporting import Remembered

_IMAGES = 2  # of a batch
_MOST = 1 << 22  # bytes
_known: WeakKeyDictionary[nn.Module, Remembered] = WeakKeyDictionary()


def remember(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    """The first two images of a batch; nothing that is large, or no plain data."""
    leaves, structure = pytree.tree_flatten((args, kwargs or {}))
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    sizes = {each.shape[0] if each.dim() else None for each in tensors}
    if not tensors or any(
        each is not None and not isinstance(each, (Tensor, bool, int, float, str)) for each in leaves
    ):
        return
    images = _IMAGES if len(sizes) == 1 and None not in sizes else None  # where only some have images, all are needed
    kept = [each[:images].detach().clone() if isinstance(each, Tensor) and each.dim() else each for each in leaves]
    if sum(each.nbytes for each in kept if isinstance(each, Tensor)) > _MOST:
        return
    found, named = pytree.tree_unflatten(kept, structure)
    try:
        _known[model] = Remembered(found, named)
    except TypeError:  # a model that has no hash
        return


def recalled(model: nn.Module) -> Remembered | None:
    """On the model's device."""
    try:
        found = _known.get(model)
    except TypeError:
        return None
    if found is None:
        return None
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    args, kwargs = pytree.tree_map_only(Tensor, lambda each: each.to(device), (found.args, dict(found.kwargs)))
    return Remembered(args, kwargs)
