"""What a file says so that it can be used alone: the names of the classes, and what an image becomes for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cigl.common.errors import CiglError
from cigl.common.preprocessing import Preprocessing, checked_classes
from cigl.runtime.format.container import Damaged

Entries = tuple[tuple[str, ...] | None, Preprocessing | None]


def entries(classes: Sequence[str] | None, preprocessing: Preprocessing | Mapping[str, Any] | None) -> dict[str, Any]:
    """As plain data, checked; either may be unknown."""
    known, prepared = checked_entries(classes, preprocessing)
    return {
        "classes": None if known is None else list(known),
        "preprocessing": None if prepared is None else prepared.to_dict(),
    }


def checked_entries(classes: Any, preprocessing: Any) -> Entries:
    """As they are used; preprocessing may be plain data."""
    if preprocessing is not None and not isinstance(preprocessing, Preprocessing):
        preprocessing = Preprocessing.from_dict(preprocessing)
    return None if classes is None else checked_classes(classes), preprocessing


def read_entries(description: Mapping[str, Any]) -> Entries:
    """From a file that is not trusted; files of earlier versions have neither."""
    try:
        return checked_entries(description.get("classes"), description.get("preprocessing"))
    except CiglError as error:
        raise Damaged(str(error).rstrip(".")) from error
