"""What the shell offers as values of options (cigl --install-completion)."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path

from cigl.train.config import KEYS, PRESETS, key_type

Complete = Callable[[str], "list[str]"]


def completion(option: str) -> Complete | None:
    """For an option of ``cigl train``; None where any value may do, and for paths, which the shell knows itself."""
    if option in _NAMES:
        return _NAMES[option]
    if option in KEYS and typing.get_origin(kind := key_type(option)[0]) is typing.Literal:
        return one_of(lambda: list(typing.get_args(kind)))
    return None


def one_of(names: Callable[[], list[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _methods() -> list[str]:
    from cigl.sparsify.methods.catalogue import methods

    return list(methods())


def _models() -> list[str]:
    import cigl.models

    return [name for name in cigl.models.names() if name.isascii() and ":" not in name and not name[-1].isupper()]


def _datasets() -> list[str]:
    import cigl.data

    return [name for name in cigl.data.names() if ":" not in name]


def _studies() -> list[str]:
    from cigl.study import catalogue

    return list(catalogue.names())


def study_or_file(incomplete: str) -> list[str]:
    """A study's name, or a YAML file in the current folder."""
    files = [str(path) for path in Path().glob("*.y*ml")]
    return [name for name in [*_studies(), *files] if name.startswith(incomplete)]


_NAMES = {
    "method": one_of(_methods),
    "model": one_of(_models),
    "dataset": one_of(_datasets),
    "preset": one_of(lambda: list(PRESETS)),
}
datasets = _NAMES["dataset"]
