"""What a study is, by its configurations and never by its names: which of the catalogue's methods, which experiment.

Somebody's own study may be called "dropout" and its methods "cigl" and "rigl", whatever they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cigl.study.catalogue import EXPERIMENTS, METHODS
from cigl.study.catalogue import study as of_catalogue
from cigl.study.grid import Study, cells
from cigl.train.config import resolve

Signature = tuple[str, frozenset[tuple[str, str]]]
# A method stays what it is at another sparsity or seed, with a larger mask, or with a topology that moves less often.
_NOT_OF_A_METHOD = ("method", "sparsity", "seed", "random_mask", "update_every")
# What a run computes does not depend on where it is done (but for rounding).
_NOT_OF_A_RUN = ("seed", "device", "workers")


def kinds(study: Study) -> dict[str, str]:
    """The catalogue's names for the study's methods, where it has one.

    A method is the catalogue's if it is the same method of training with the same keys of the setting changed. How
    much is a matter of strength (of mixup, of smoothing), which is which (``p*W``, a pilot) is not.

    >>> toy = {"toy": {"preset": "mnist1d-mlp"}}
    >>> mine = {"a": {"method": "rigl", "mixup": 0.4}, "rigl": {"method": "set"}, "b": {"method": "cigl", "lr": 1}}
    >>> kinds(Study("mine", toy, mine, sparsity=(0.8,)))
    {'a': 'rigl-mixup', 'rigl': 'set'}
    """
    setting = next(iter(study.settings.values()))
    found = {method: _catalogued().get(_signature(setting, own)) for method, own in study.methods.items()}
    return {method: kind for method, kind in found.items() if kind is not None}


def of_kind(study: Study, kind: str) -> list[str]:
    """The study's methods of a kind: that of the same name, if it is of the kind, else all."""
    found = [method for method, its in kinds(study).items() if its == kind]
    return [kind] if kind in found else found


@cache
def _catalogued() -> dict[Signature, str]:
    """The first name counts: of CigL with masks of several sizes, plain CigL."""
    return {_signature({}, keys): name for name, (_, keys) in reversed(METHODS.items())}


def _signature(shared: Mapping[str, Any], own: Mapping[str, Any]) -> Signature:
    """The method of training, and what else a method of a study changes in its setting."""
    keys = {name: value for name, value in own.items() if name != "sparsity"}
    before, after = (_resolved(one) for one in (dict(shared), {**shared, **keys}))
    changed = {
        name: value for name, value in after.items() if value != before.get(name) and name not in _NOT_OF_A_METHOD
    }
    return str(after["method"]), frozenset((name, _choice(value)) for name, value in changed.items())


def _choice(value: Any) -> str:
    return "a number" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _resolved(keys: dict[str, Any]) -> dict[str, Any]:
    preset = keys.pop("preset", None)
    return resolve(keys, preset=preset).plain()


def experiment(study: Study) -> tuple[str, str] | None:
    """The name and the scale of the paper's experiment that a study is: the same runs, whatever it is called.

    >>> experiment(of_catalogue("wma-effect", "paper").with_seeds((7,)))
    ('wma-effect', 'paper')
    >>> experiment(of_catalogue("wma-effect", "paper").with_keys({"epochs": 3})) is None
    True
    """
    return _experiments().get(_runs(study))


@cache
def _experiments() -> dict[tuple[int, frozenset[str]], tuple[str, str]]:
    places = [(name, scale) for name, each in EXPERIMENTS.items() for scale in each.scales]
    return {_runs(of_catalogue(*place)): place for place in places}


def _runs(study: Study) -> tuple[int, frozenset[str]]:
    first = study.with_seeds(study.seeds[:1])
    return study.masks, frozenset(cell.config.digest(without=_NOT_OF_A_RUN) for cell in cells(first))


def relation_to_paper(study: Study) -> str:
    """A sentence on which of the paper's tables and figures the study is about; none for somebody's own."""
    found = experiment(study)
    if found is None:
        return ""
    name, scale = found
    shows = EXPERIMENTS[name].shows
    return f"It repeats {shows}." if scale == "paper" else f"It is the experiment of {shows}, in a small setting."


def sparsities(study: Study) -> list[float]:
    """Those of the method that has the most: the dense network has but one."""
    found: dict[str, set[float]] = {}
    for cell in cells(study.with_seeds(study.seeds[:1])):
        found.setdefault(cell.method, set()).add(cell.sparsity)
    return max((sorted(levels) for levels in found.values()), key=len)


def from_dense_to_empty(study: Study) -> bool:
    """Whether it follows a network through many sparsities, from all of its weights to almost none."""
    found = sparsities(study)
    return len(found) >= 8 and found[0] == 0 and found[-1] >= 0.99


def compares_methods(study: Study) -> bool:
    """A study of one method that draws masks is about the masks."""
    return len(study.methods) > 1 or not study.masks


def fits_temperatures(study: Study) -> bool:
    return any(cell.config.temperature == "holdout" for cell in cells(study.with_seeds(study.seeds[:1])))
