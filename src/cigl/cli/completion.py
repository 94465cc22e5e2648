"""What the shell offers as values of options (cigl --install-completion)."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable, Iterable
from pathlib import Path

from cigl.train.config import KEYS, PRESETS, key_type

Complete = Callable[[str], "list[str]"]


def completion(option: str) -> Complete | None:
    """For an option of ``cigl train``; None where any value may do, and for paths, which the shell knows itself."""
    if option in _NAMES:
        return _NAMES[option]
    if option in KEYS and typing.get_origin(kind := key_type(option)[0]) is typing.Literal:
        return one_of(typing.get_args(kind))
    return None


def one_of(names: Iterable[str]) -> Complete:
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _listed_by(module: str, function: str = "names") -> Complete:
    """What the function lists, but patterns; imported when the shell asks."""

    def complete(incomplete: str) -> list[str]:
        found = getattr(importlib.import_module(module), function)()
        return one_of(name for name in found if ":" not in name and name.islower())(incomplete)

    return complete


_NAMES = {
    "method": _listed_by("cigl.sparsify.methods.catalogue", "methods"),
    "model": _listed_by("cigl.models"),
    "dataset": _listed_by("cigl.data"),
    "preset": one_of(PRESETS),
}
datasets = _NAMES["dataset"]


def study_or_file(incomplete: str) -> list[str]:
    """A study's name, or a YAML file in the current folder."""
    files = [str(path) for path in Path().glob("*.y*ml")]
    return [*_listed_by("cigl.study.catalogue")(incomplete), *one_of(files)(incomplete)]
