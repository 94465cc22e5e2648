"""What copies have in the place of a sparsifier."""

from __future__ import annotations

from typing import Any

from cigl.common.errors import CiglError


class DetachedError(CiglError, AttributeError):
    """Also what copying, pickling and ``hasattr`` expect of something without an attribute."""


class DetachedSparsifier:
    """What a copy of a model has where the model holds its sparsifier (``model.sparse = cigl.attach(model, ...)``)."""

    def __getattr__(self, name: str) -> Any:
        raise DetachedError(f"a copy of a model has no sparsifier, so no {name}: a sparsifier belongs to one model.")
