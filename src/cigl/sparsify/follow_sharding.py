"""A model that is sharded after ``cigl.attach``: everything kept of a parameter moves to what it has become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from cigl.common.errors import CiglError
from cigl.sparsify.guards.checks import check_agreed
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.averaging import Collection, RunningMean, Snapshots
from cigl.sparsify.methods.rounds import count_weights
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.results.ema import Ema
from cigl.sparsify.tensors.shards import check_all_sharded, has_shards, is_sharded, like, refusal, reshard, rows_of


class Sharding:
    """Knows whether the model is sharded, and notices when it has been since it was attached."""

    def __init__(self, context: Context, averages: Iterable[Ema], followed: Callable[[], None]):
        self._context, self._averages, self._followed = context, averages, followed
        self._is_sharded = has_shards(context.model)
        self._names = WeakIdKeyDictionary({p: name for name, p in context.model.named_parameters()})

    def before_change(self) -> list[Any]:
        """The sharded weights are about to change or to be read. Returns what FSDP must then gather at once."""
        if self._is_sharded:
            reshard(self._context.model)
        elif any(_held(layer) is not layer.parameter for layer in self._context.layers):
            return self._follow()
        return []

    def _follow(self) -> list[Any]:
        gathered = list(_force_reshard(self._context.model))
        if has_shards(self._context.model):
            _follow(self._context, self._averages, self._names)
            self._is_sharded = True
            self._followed()
        return gathered  # if nothing is sharded, parameters were replaced in another way: checks.py says so


def _follow(context: Context, averages: Iterable[Ema], names: Mapping[Any, str]) -> None:
    """``names`` are those of all parameters at the time of cigl.attach."""
    parameters = dict(context.model.named_parameters())
    _check(context, parameters)
    for layer in context.layers:
        parameter = parameters[layer.name]
        layer.bind(replace(layer.selected, parameter=parameter))
        layer.bits, layer.explored = (rows_of(parameter, t).clone() for t in (layer.bits, layer.explored))
        layer.memory = {name: rows_of(parameter, value).clone() for name, value in layer.memory.items()}
    count_weights(context.layers)
    check_agreed(context.layers, {**context.method.describe(), **context.settings})
    _shard_averages(context.collection, averages, parameters)
    _replace_in_optimizers(context, names, parameters)


def _held(layer: Layer) -> Any:
    owner = layer.selected.owners[0]
    return owner.module._parameters.get(owner.attribute)


def _check(context: Context, parameters: Mapping[str, nn.Parameter]) -> None:
    for layer in context.layers:
        parameter = parameters.get(layer.name)
        if parameter is None or parameter.shape != layer.shape:
            raise CiglError(f"{layer.name} has another shape since the model was sharded: detach, and attach again.")
        if reason := refusal(parameter, [owner.module for owner in layer.selected.owners]):
            raise CiglError(f"{layer.name} {reason}.")
    check_all_sharded({layer.name: parameters[layer.name] for layer in context.layers})
    context.states.check_sharded(parameters.values())
    if context.kind == "sparse":
        raise CiglError(
            "sparse kernels can't run on sharded parameters: use kernels='auto' or kernels='masked'.",
            arguments=("kernels",),
        )


def _shard_averages(
    collection: Collection | None, averages: Iterable[Ema], parameters: Mapping[str, nn.Parameter]
) -> None:
    def rows(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: rows_of(parameters[n], v).clone() if n in parameters else v for n, v in values.items()}

    if isinstance(collection, RunningMean):
        collection.mean, collection.squares = rows(collection.mean), rows(collection.squares)
    elif isinstance(collection, Snapshots):
        collection.models = [rows(model) for model in collection.models]
    for ema in averages:
        ema.shard(rows)


def _replace_in_optimizers(context: Context, names: Mapping[Any, str], parameters: Mapping[str, nn.Parameter]) -> None:
    """An optimizer that was built before sharding holds the parameters of then."""
    for optimizer in context.states.chain.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [parameters[names[p]] if p in names else p for p in group["params"]]
        for old in [p for p in optimizer.state if p in names]:
            new, state = parameters[names[old]], optimizer.state.pop(old)
            optimizer.state[new] = {k: _sharded_state(new, v) for k, v in state.items()}


def _sharded_state(parameter: nn.Parameter, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape or is_sharded(value):
        return value
    return like(parameter, rows_of(parameter, value).clone())


def _force_reshard(model: nn.Module) -> Iterator[Any]:
    """FSDP has gathered its root's parameters before our hook came: they are to be gathered again, with Z."""
    for module in model.modules():
        get_state = getattr(module, "_get_fsdp_state", None)
        for group in get_state()._fsdp_param_groups if get_state is not None else ():
            if group.is_unsharded:
                group._to_sharded()
                yield group
