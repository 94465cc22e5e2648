"""Names that are imported when they are first used: `cigl --help` must not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__`` (PEP 562): ``places`` maps a module to the names found there.

    Names placed in the package itself are its submodules.
    """
    where = {name: place for place, names in places.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if where[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(where[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, names
