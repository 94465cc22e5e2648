"""Anyone's own network: ``package.module:factory``, imported and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from cigl.common.errors import CiglError
from cigl.common.references import made_by


def from_factory(name: str, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Call the factory with as much as it takes: (classes=, shape=), (num_classes=), (classes) or nothing.

    >>> from_factory("torch.nn:Identity", classes=10, shape=(3, 32, 32))
    Identity()
    """
    model = made_by(name, "network", lambda factory: _call(factory, classes, shape))
    if not isinstance(model, nn.Module):
        raise CiglError(f"{name} returned {type(model).__name__}, but must return a torch.nn.Module.")
    return model


def _call(factory: Callable[..., Any], classes: int, shape: tuple[int, ...]) -> Any:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature
        return factory(classes)
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *([((), {"num_classes": classes})] if _is_of_a_library(signature) else []),
        ((), {"classes": classes, "shape": shape}),
        ((), {"classes": classes}),
        ((classes,), {}),
        ((), {}),
    ]
    for args, kwargs in ways:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return factory(*args, **kwargs)
    raise TypeError(f"it takes {signature}, not (classes, shape), (classes) or nothing")


def _is_of_a_library(signature: inspect.Signature) -> bool:
    """As torchvision's and timm's networks are called: ``num_classes`` may be among what they pass on."""
    named = signature.parameters
    passes_on = any(each.kind is each.VAR_KEYWORD for each in named.values())
    return "num_classes" in named or (passes_on and bool({"weights", "pretrained"} & named.keys()))
