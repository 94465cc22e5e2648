"""Anyone's own network, dataset or method: ``package.module:name``, imported when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from cigl.common.errors import CiglError
from cigl.common.text import one_line


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
        raise CiglError(f"{module_name} can't be imported for {text}: {_reason(error)}") from error
    finally:
        sys.path[:] = path
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CiglError(f"{module_name} has no {attribute!r}: check the part after the colon in {text}.")
        found = getattr(found, part)
    return found


def made_by(text: str, kind: str, call: Callable[[Any], Any] = lambda function: function()) -> Any:
    """What a function of the user's makes; ``call`` says with which arguments.

    >>> made_by("collections:Counter", "network")
    Counter()
    """
    function = load_reference(text, kind)
    if not callable(function):
        raise CiglError(f"{text} is a {type(function).__name__}, but must be callable.")
    try:
        return call(function)
    except CiglError:
        raise
    except Exception as error:  # anything can happen in it
        raise CiglError(f"{text} could not make a {kind}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
