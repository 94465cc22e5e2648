"""A plan: for each shape of inputs, which units run sparse and why. Plain data, to be saved and passed in again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from cigl.common.errors import CiglError
from cigl.runtime.assignment import Assignment
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.schedule import Survey

VERSION = 1
_NEAR = 1.5  # times as long or short, in every dimension
_NUMBERS = ("nonzeros", "density", "dense_ms", "sparse_ms")
Shapes = tuple[tuple[int, ...], ...]


def entry(network: Network, facts: Survey, inputs: Shapes, threads: int, assignment: Assignment) -> dict[str, Any]:
    """The assignment for inputs of these shapes, unit by unit, with times in milliseconds."""
    units = []
    for number, unit in enumerate(network.units):
        if facts.constants.keys() >= set(unit.outputs):
            continue
        operation = unit.operation
        row: dict[str, Any] = {
            "unit": unit.name,
            "kind": type(operation).__name__.lower(),
            "runs": "sparse" if number in assignment.sparse else "dense",
        }
        if (shape := facts.shapes[unit.outputs[0]]) is not None:
            row["shape"] = list(shape)
        if isinstance(operation, op.Weighted):
            weight = operation.weight
            row |= {"weight": list(weight.shape), "nonzeros": weight.nonzeros, "density": round(weight.density, 6)}
        for name, seconds in (("dense_ms", assignment.dense_seconds), ("sparse_ms", assignment.sparse_seconds)):
            if number in seconds:
                row[name] = round(1000 * seconds[number], 4)
        units.append(row)
    return {"inputs": [list(shape) for shape in inputs], "threads": threads, "units": units}


def of_layers(plan: Any) -> dict[str, Any]:
    """The plans of layers that have an engine of their own, by their paths."""
    found = plan.get("layers", {}) if isinstance(plan, dict) else {}
    return found if isinstance(found, dict) else {}


def near(entries: Mapping[Shapes, dict[str, Any]], shapes: Shapes) -> dict[str, Any] | None:
    """The entry for the nearest sizes, if they are near enough for the same choices to be good.

    >>> near({((1, 100),): {"units": []}}, ((1, 128),))
    {'units': []}
    """

    def distance(known: Shapes) -> float:
        if [len(shape) for shape in known] != [len(shape) for shape in shapes]:
            return math.inf
        pairs = [pair for a, b in zip(known, shapes, strict=True) for pair in zip(a, b, strict=True)]
        return max((abs(math.log(max(a, 1) / max(b, 1))) for a, b in pairs), default=0.0)

    nearest = min(entries, key=distance, default=None)
    return entries[nearest] if nearest is not None and distance(nearest) <= math.log(_NEAR) else None


def read(network: Network, plan: Any) -> dict[Shapes, dict[str, Any]]:
    """The entries of a saved plan by their inputs, after checks that it is a plan, and one of this network."""
    if not isinstance(plan, dict) or plan.get("version") != VERSION or not isinstance(plan.get("shapes"), list):
        raise CiglError(f"this is not a plan of version {VERSION}: pass what fast.plan() returned.")
    entries: dict[Shapes, dict[str, Any]] = {}
    names = {unit.name for unit in network.units}
    for each in plan["shapes"]:
        try:
            shapes = tuple(_sizes(shape) for shape in each["inputs"])
            (threads,) = _sizes([each["threads"]])
            rows = [_row(row) for row in each["units"]]
            runs = {row["unit"]: row["runs"] for row in rows}
            known = set(runs.values()) <= {"sparse", "dense"}
        except (KeyError, TypeError, ValueError) as error:
            raise CiglError("the plan is damaged: make a new one with fast.plan().") from error
        if len(shapes) != len(network.inputs) or not set(runs) <= names or not known:
            raise CiglError("the plan belongs to another model: leave it out, and a new one is made.")
        entries[shapes] = {"inputs": [list(shape) for shape in shapes], "threads": threads, "units": rows}
    return entries


def _row(row: Any) -> dict[str, Any]:
    """What an entry says of a unit, without anything that we don't write; a TypeError if it is something else."""
    found = {name: row[name] for name in ("unit", "kind", "runs", *_NUMBERS) if name in row}
    numbers = all(type(found.get(name, 0)) in (int, float) for name in _NUMBERS)
    if not numbers or not isinstance(found.get("kind", ""), str):
        raise TypeError
    return found | {name: list(_sizes(row[name])) for name in ("shape", "weight") if name in row}


def _sizes(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise TypeError
    return tuple(shape)


def followed(network: Network, entry: dict[str, Any], possible: Collection[int]) -> Assignment:
    """The assignment of a saved entry, as far as there are kernels for it."""
    sparse = {row["unit"] for row in entry["units"] if row["runs"] == "sparse"}
    return Assignment({number for number in possible if network.units[number].name in sparse})
