"""Engines for other processes: with pickle, torch.save, multiprocessing and Ray. (cigl.load unpickles nothing.)"""

from __future__ import annotations

import importlib
import io
import pickle
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F


class _Pickler(pickle.Pickler):
    """Also of functions that pickle has no name for: ATen operations, and those that torch makes from two others."""

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, torch._ops.OpOverload):
            namespace, name = found._schema.name.split("::")
            return _operation, (namespace, name, found._overloadname)
        if isinstance(found, FunctionType) and found in _functions():
            return _function, _functions()[found]
        return NotImplemented


def pickled(state: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(state)
    return buffer.getvalue()


@cache
def _functions() -> dict[Any, tuple[str, str]]:
    return {
        each: (F.__name__, name) for name, each in vars(F).items() if "<locals>" in getattr(each, "__qualname__", "")
    }


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _operation(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)
