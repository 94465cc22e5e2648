"""Libraries that only a part of the package needs: when one is missing, a sentence says which extra brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cigl.common.errors import CiglError


@contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """Around an import: ``with from_extra("cli", "runs"): import yaml``."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        raise CiglError(f"{what} need {library}, which is not installed: pip install 'cigl[{extra}]'.") from error
