"""A plan: for each shape of inputs, which units run sparse and why. Plain data, to be saved and handed in again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cigl.errors import CiglError
from cigl.runtime import operations as op
from cigl.runtime.choice import Choice
from cigl.runtime.lowering import Network
from cigl.runtime.schedule import Survey

VERSION = 1
Shapes = tuple[tuple[int, ...], ...]


def entry(network: Network, facts: Survey, inputs: Shapes, threads: int, choice: Choice) -> dict[str, Any]:
    """What was chosen for inputs of these shapes, unit by unit, in milliseconds."""
    units = []
    for number, unit in enumerate(network.units):
        if facts.constants.keys() >= set(unit.outputs):
            continue
        operation = unit.operation
        row: dict[str, Any] = {
            "unit": unit.name,
            "kind": type(operation).__name__.lower(),
            "runs": "sparse" if number in choice.sparse else "dense",
        }
        if (shape := facts.shapes[unit.outputs[0]]) is not None:
            row["shape"] = list(shape)
        if isinstance(operation, op.Conv | op.Linear):
            weight = operation.weight
            row |= {"weight": list(weight.shape), "nonzeros": weight.nonzeros, "density": round(weight.density, 6)}
        times = {"dense_ms": choice.dense_seconds.get(number), "sparse_ms": choice.sparse_seconds.get(number)}
        row |= {name: round(1000 * seconds, 4) for name, seconds in times.items() if seconds is not None}
        units.append(row)
    return {"inputs": [list(shape) for shape in inputs], "threads": threads, "units": units}


def read(network: Network, plan: Any) -> dict[Shapes, dict[str, Any]]:
    """The entries of a saved plan by their inputs, after checks that it is a plan, and one of this network."""
    if not isinstance(plan, dict) or plan.get("version") != VERSION or not isinstance(plan.get("shapes"), list):
        raise CiglError(f"this is not a plan of version {VERSION}: hand in what fast.plan() returned.")
    entries: dict[Shapes, dict[str, Any]] = {}
    names = {unit.name for unit in network.units}
    for each in plan["shapes"]:
        try:
            shapes = tuple(tuple(int(size) for size in shape) for shape in each["inputs"])
            chosen = {row["unit"]: row["runs"] for row in each["units"]}
            runs = set(chosen.values())
        except (KeyError, TypeError, ValueError) as error:
            raise CiglError("the plan is damaged: make a new one with fast.plan().") from error
        if not set(chosen) <= names or not runs <= {"sparse", "dense"}:
            raise CiglError("the plan belongs to another model: leave it out, and a new one is made.")
        entries[shapes] = each
    return entries


def chosen(network: Network, entry: dict[str, Any], possible: Sequence[int] | set[int]) -> Choice:
    """The choice of a saved entry, as far as there are kernels for it."""
    sparse = {row["unit"] for row in entry["units"] if row["runs"] == "sparse"}
    return Choice({number for number in possible if network.units[number].name in sparse})
