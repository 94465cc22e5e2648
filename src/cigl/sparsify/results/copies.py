"""Copies of an attached model: nothing of this package acts in them, and what ``finalize`` returns holds none of it."""

from __future__ import annotations

from typing import Any

from torch import nn

from cigl.common.errors import CiglError
from cigl.sparsify.loop.binding import remove_hooks


class AbsentError(CiglError, AttributeError):
    """Also what copying, pickling and ``hasattr`` expect of something without an attribute."""


class Absent:
    """What a copy of a model has where the model holds its sparsifier (``model.sparse = cigl.attach(model, ...)``)."""

    def __getattr__(self, name: str) -> Any:
        raise AbsentError(f"a copy of a model has no sparsifier, so no {name}: a sparsifier belongs to one model.")


def make_plain(model: nn.Module) -> None:
    """Take what is left of this package out of a copy."""
    remove_hooks(model)
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, Absent)]:
            del vars(module)[name]
