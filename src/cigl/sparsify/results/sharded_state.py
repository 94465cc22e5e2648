"""The sparsifier's state under FSDP2: DTensors, sharded as the parameters are, for torch.distributed.checkpoint.

torch.distributed.checkpoint loads into a state that has all entries already, so a sharded state always has the same
ones: averages that have not begun are zeros. DTensors of another number of processes and whole tensors are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from cigl.sparsify.methods.averaging import wide
from cigl.sparsify.tensors.shards import like, local, rows_of

Convert = Callable[[nn.Parameter, Tensor], Any]


def wrapped(state: Mapping[str, Any], model: nn.Module, snapshots: int, second_moment: bool) -> dict[str, Any]:
    """Local rows as DTensors, with all entries; ``snapshots`` is how many there will be in all."""
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(local(p), dtype=wide(p.dtype)) for name, p in parameters.items()}
    state = dict(state)
    collection = state["collection"]
    if collection is not None and "models" in collection:
        models = collection["models"]
        plain = {n: torch.zeros_like(local(p)) for n, p in parameters.items()} | dict(model.named_buffers())
        missing = [plain] * max(0, snapshots - len(models))
        state["collection"] = {"count": len(models), "models": [*models, *missing]}
    elif collection is not None and not collection["count"]:
        state["collection"] = {**collection, "mean": zeros, "squares": zeros if second_moment else {}}
    if "ema" in state:
        masks = {name: layer["mask"] for name, layer in state["layers"].items()}
        state["ema"] = [e if e["count"] else {**e, "values": zeros, "masks": masks} for e in state["ema"]]
    return _converted(state, parameters, like)


def unwrapped(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The local rows of whatever was saved, without the zeros of averages that had not begun."""
    state = _converted(state, dict(model.named_parameters()), _rows)
    collection = state["collection"]
    if collection is not None and "models" in collection:
        count = collection.get("count", len(collection["models"]))
        state["collection"] = {"models": collection["models"][:count]}
    elif collection is not None and _has_not_begun(collection, "mean", "squares"):
        state["collection"] = {**collection, "mean": {}, "squares": {}}
    emas = state.get("ema", ())
    state["ema"] = [{**e, "values": {}, "masks": {}} if _has_not_begun(e, "values") else e for e in emas]
    return state


def _has_not_begun(average: Mapping[str, Any], *parts: str) -> bool:
    return not average["count"] and not any(bool(t.any()) for part in parts for t in average[part].values())


def _rows(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Of a value of another shape nothing: what reads it will say what is wrong."""
    return rows_of(parameter, value) if value.shape == parameter.shape else value


def _converted(state: Mapping[str, Any], parameters: Mapping[str, nn.Parameter], convert: Convert) -> dict[str, Any]:
    """With every tensor that has been saved of a parameter, under its name, converted."""

    def each(values: Mapping[str, Any]) -> dict[str, Any]:
        own = {
            n: tree_map_only(Tensor, partial(convert, parameters[n]), v) for n, v in values.items() if n in parameters
        }
        return {**values, **own}

    state = {**state, "layers": each(state["layers"])}
    if (collection := state["collection"]) is not None and "models" in collection:
        state["collection"] = {**collection, "models": [each(model) for model in collection["models"]]}
    elif collection is not None:
        state["collection"] = {**collection, **{part: each(collection[part]) for part in ("mean", "squares")}}
    if "ema" in state:
        state["ema"] = [{**e, "values": each(e["values"]), "masks": each(e["masks"])} for e in state["ema"]]
    return state
