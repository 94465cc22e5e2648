"""Anyone's own network: ``package.module:factory``, imported and called."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from cigl.errors import CiglError


def from_factory(name: str, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Call the factory with as much as it takes: (classes=, shape=), (classes) or nothing.

    >>> from_factory("torch.nn:Identity", classes=10, shape=(3, 32, 32))
    Identity()
    """
    factory = _find(name)
    try:
        model = _call(factory, classes, shape)
    except Exception as error:
        raise CiglError(f"{name} could not make a network: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise CiglError(f"{name} returned {type(model).__name__}, but must return a torch.nn.Module.")
    return model


def _find(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise CiglError(f"{name!r} is not a factory: write package.module:factory.")
    path = list(sys.path)
    if os.getcwd() not in path:  # a command is started from its own folder, but means files in this one
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's can fail in any way while it is imported
        raise CiglError(f"{module_name} can't be imported for {name}: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = path
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CiglError(f"{module_name} has no {attribute!r}: check the part after the colon in {name}.")
        found = getattr(found, part)
    if not callable(found):
        raise CiglError(f"{name} is a {type(found).__name__}, but must be callable.")
    return found  # type: ignore[no-any-return]


def _call(factory: Callable[..., Any], classes: int, shape: tuple[int, ...]) -> Any:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin that doesn't tell
        return factory(classes)
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
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
