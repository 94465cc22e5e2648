"""Anyone's own network, dataset or method: ``package.module:name``, imported when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from cigl.common.errors import CiglError


def load_reference(text: str, kind: str) -> Any:
    """What ``package.module:name`` refers to; ``kind`` (for example "model") is for the error alone.

    >>> load_reference("math:pi", "number")
    3.141592653589793
    """
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise CiglError(f"{text!r} refers to no {kind}: write package.module:name.")
    path = list(sys.path)
    if os.getcwd() not in path:  # a command is started from its own folder, but means files in this one
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's can fail in any way while it is imported
        reason = " ".join(str(error).split())
        raise CiglError(f"{module_name} can't be imported for {text}: {type(error).__name__}: {reason}") from error
    finally:
        sys.path[:] = path
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CiglError(f"{module_name} has no {attribute!r}: check the part after the colon in {text}.")
        found = getattr(found, part)
    return found
