"""What a study is: settings times methods times sparsities times seeds, each a run's configuration. No torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cigl.common.errors import CiglError, unknown
from cigl.common.numbers import is_whole
from cigl.common.text import percent
from cigl.train.config import Config, resolve

AXES = ("setting", "method", "sparsity", "seed")
_OWN = {"sparsity": "sparsities", "seed": "seeds"}  # keys of a run that the study has itself


@dataclass(frozen=True)
class Study:
    """The same keys in the catalogue, in a user's YAML file and in ``study.yaml``.

    >>> study = Study("mine", settings={"toy": {"preset": "mnist1d-mlp"}}, methods={"rigl": {"method": "rigl"}},
    ...               sparsity=(0.8, 0.9), seeds=(0, 1))
    >>> len(cells(study))
    4
    """

    name: str
    settings: Mapping[str, Mapping[str, Any]]  # keys of a run that all methods share; a preset is one of them
    methods: Mapping[str, Mapping[str, Any]]  # keys of a run that make a method; its own sparsity replaces the study's
    sparsity: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    about: str = ""
    reference: str = "rigl"  # the method that differences are taken against
    masks: int = 0  # draws of the random mask that each finished run is tested with
    labels: Mapping[str, str] = field(default_factory=dict)  # of methods, for people

    def __post_init__(self) -> None:
        _check(self)

    def label(self, method: str) -> str:
        return self.labels.get(method, method)

    def plain(self) -> dict[str, Any]:
        """As JSON and YAML hold it."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    def with_keys(self, keys: Mapping[str, Any]) -> Study:
        """The same with these keys of a run in every setting."""
        return dataclasses.replace(self, settings={name: {**own, **keys} for name, own in self.settings.items()})

    def with_seeds(self, seeds: tuple[int, ...]) -> Study:
        return dataclasses.replace(self, seeds=seeds)

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Study:
        """From what ``plain`` gave, or a user's file holds: there, seeds may be a number and sparsity a single one."""
        known = [each.name for each in fields(cls)]
        for key in keys:
            if key not in known:
                raise unknown("key of a study", key, known)
        missing = [name for name in ("name", "settings", "methods") if name not in keys]
        if missing:
            raise CiglError(f"the study has no {missing[0]}: a study needs name, settings and methods.")
        seeds = keys.get("seeds", 3)
        listed = {"seeds": list(range(seeds)) if is_whole(seeds) else seeds, "sparsity": keys.get("sparsity", ())}
        return cls(**{**keys, **{name: _listed(value) for name, value in listed.items()}})

    def only(self, wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
        """The cells with these values of setting, method, sparsity or seed; an axis may have several."""
        every = found = cells(self)
        for axis, values in wanted.items():
            if axis not in AXES:
                raise unknown("axis in --only", axis, AXES)
            for value in values:
                if not any(cell.matches(axis, value) for cell in every):
                    raise unknown(f"{axis} in --only", value, {str(getattr(cell, axis)) for cell in every})
            found = [cell for cell in found if any(cell.matches(axis, value) for value in values)]
        for axis, values in wanted.items():
            for value in values:
                if not any(cell.matches(axis, value) for cell in found):
                    raise CiglError(f"--only has {axis}={value}, which no run has with the rest: leave it out.")
        return found


@dataclass(frozen=True)
class Cell:
    """One run of a study, and where it stands in the grid."""

    setting: str
    method: str
    sparsity: float
    seed: int
    config: Config

    def __str__(self) -> str:
        return f"{self.method} {percent(self.sparsity)} {self.setting} seed {self.seed}"

    @property
    def digest(self) -> str:
        return self.config.digest()

    def matches(self, axis: str, value: str) -> bool:
        own = getattr(self, axis)
        try:
            return bool(own == value if isinstance(own, str) else abs(own - float(value)) < 1e-9)
        except ValueError:
            raise CiglError(f"--only has {axis}={value}: give a number.") from None


def cells(study: Study) -> list[Cell]:
    """Every run once; seeds vary slowest, so that a study cut short has whole grids of fewer seeds."""
    return list(_cells(study))


def _cells(study: Study) -> Iterator[Cell]:
    for seed, (setting, shared), (method, own) in itertools.product(
        study.seeds, study.settings.items(), study.methods.items()
    ):
        for sparsity in _listed(own.get("sparsity", study.sparsity)):
            keys = {**shared, **own, "sparsity": sparsity, "seed": seed}
            preset = keys.pop("preset", None)
            config = resolve(keys, preset=preset)
            yield Cell(setting, method, config.sparsity, config.seed, config)


def _check(study: Study) -> None:
    if not isinstance(study.name, str) or not study.name:
        raise CiglError(f"the study's name is {study.name!r}: give a string.")
    for kind, elsewhere in (("settings", ("sparsity", "seed")), ("methods", ("seed",))):
        value = getattr(study, kind)
        if not isinstance(value, Mapping) or not all(isinstance(keys, Mapping) for keys in value.values()):
            raise CiglError(f"{kind} of study {study.name!r} must be names, each with the keys of a run.")
        for name, keys in value.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise CiglError(f"one of the {kind} is named {name!r}: give a string of one line.")
            if kind == "settings" and "/" in name:  # tables and figures have it in their file names
                raise CiglError(f"one of the settings is named {name!r}: leave out the slash.")
            if lost := [key for key in elsewhere if key in keys]:
                own = _OWN[lost[0]]
                raise CiglError(f"{name!r} in {kind} has {lost[0]}: leave it out, it is the study's {own} that count.")
    if not all(is_whole(seed) for seed in study.seeds):
        raise CiglError(f"the seeds are {list(study.seeds)}: give whole numbers, or how many seeds.")
    if len(set(study.seeds)) != len(study.seeds):
        raise CiglError(f"the seeds {list(study.seeds)} repeat: give each once, or a number of seeds.")
    if not is_whole(study.masks) or study.masks < 0:
        raise CiglError(f"masks is {study.masks!r}: say how many masks to draw, 0 for none.")
    if not isinstance(study.about, str):
        raise CiglError(f"about is {study.about!r}: give a string.")
    if not isinstance(study.labels, Mapping) or not all(isinstance(label, str) for label in study.labels.values()):
        raise CiglError("labels must be names of methods, each with a string.")
    found = cells(study)
    if not found:
        raise CiglError(f"study {study.name!r} is an empty grid: it needs settings, methods, sparsities and seeds.")
    if len({(cell.setting, cell.method, cell.sparsity, cell.seed) for cell in found}) != len(found):
        raise CiglError(f"the sparsities of study {study.name!r} repeat: give each once.")
    if not isinstance(study.reference, str) or study.reference not in study.methods:
        raise unknown("reference", study.reference, study.methods)


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
