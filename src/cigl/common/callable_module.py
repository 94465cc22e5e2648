"""Modules named after their one main function, which can be called like it.

`import cigl.calibrate.report` must give the module, and `cigl.calibrate.report(...)` is a documented function: both
hold.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """Calls the function that has the module's own name."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **keywords)


def make_callable(module: str) -> None:
    """Called at the end of a module, as ``make_callable(__name__)``."""
    sys.modules[module].__class__ = CallableModule
