"""What an optimizer keeps of a weight: the state tensors that have one number per weight.

Only these are set aside under Z, reset where M changes and kept clean outside M; everything else an optimizer keeps
(step counts, factored moments, preconditioners, quantized moments) is left alone. torch's optimizers are known; of
others it is found out in their first steps (inference.py), unless the user names the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from cigl.common.errors import CiglError
from cigl.common.numbers import is_number
from cigl.sparsify.optimizers.inference import Fresh, Masked, Observation, Verdict
from cigl.sparsify.optimizers.wrappers import OptimizerChain
from cigl.sparsify.tensors.flat_indexing import keep_only
from cigl.sparsify.tensors.shards import is_sharded, local


class GroupOption(NamedTuple):
    """The value of a new weight's state is the first of these options that the parameter's group has."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """An optimizer's states per weight, each with the value that a new weight starts from."""

    states: Mapping[str, Fresh | GroupOption]
    keeps_zeros: bool = False  # a weight whose value, gradient and state are zero stays exactly so


def _zeros(*names: str) -> Known:
    return Known(dict.fromkeys(names, 0.0), keeps_zeros=True)


_ADAM = _zeros("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

_KNOWN: dict[type[Optimizer], Known] = {
    optim.SGD: _zeros("momentum_buffer"),
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: _ADAM,
    optim.RAdam: _ADAM,
    optim.RMSprop: _zeros("square_avg", "momentum_buffer", "grad_avg"),
    optim.Adadelta: _zeros("square_avg", "acc_delta"),
    optim.Adamax: Known({"exp_avg": 0.0, "exp_inf": 0.0}),  # eps is added to exp_inf
    optim.Adagrad: Known({"sum": GroupOption(("initial_accumulator_value",))}),
    optim.Rprop: Known(
        {"prev": 0.0, "step_size": GroupOption(("initial_lr", "lr"))}
    ),  # a scheduler keeps the first one
    optim.ASGD: Known({"ax": "weight"}),
    optim.Adafactor: Known({"variance": 0.0}),  # of vectors; the moments of a matrix are factored
}
if hasattr(optim, "Muon"):  # torch 2.9
    _KNOWN[optim.Muon] = Known({"momentum_buffer": 0.0})  # its update mixes weights

# Copies of weights by the names that they have everywhere: Lookahead's, and Prodigy's first weights. Steps change them
# rarely or never, and so would show nothing.
_COPIES = ("slow_params", "slow_buffer", "lookahead_params", "lookahead_slow_buff", "cached_params", "p0")


class StateTensor(NamedTuple):
    """A state with one number per weight, in the parameter's shape."""

    name: str
    tensor: Tensor
    fresh: Fresh

    @property
    def of_zero(self) -> float:
        """The value for a weight that is zero: an inactive one, or one that has just grown."""
        return 0.0 if self.fresh == "weight" else self.fresh

    def started(self, weights: Tensor) -> Tensor:
        """The state of new weights with these values."""
        if self.fresh == "weight":
            return weights.to(self.tensor.dtype)
        return torch.full_like(weights, self.fresh, dtype=self.tensor.dtype)

    def clear(self, bits: Tensor) -> None:
        """As for inactive weights, outside M."""
        if self.of_zero == 0:
            keep_only(self.tensor, bits)
        else:
            self.tensor.masked_fill_(bits == 0, self.of_zero)


class OptimizerState:
    """The state of all optimizers that move the model's weights; ``optimizer`` is the one that steps."""

    def __init__(self, chain: OptimizerChain, named: Iterable[str] | Mapping[str, Fresh] | None = None):
        self.chain = chain
        self.optimizer = chain.stepping
        self._named = named is not None
        self.verdicts = _read_names(dict.fromkeys(_COPIES, "weight") if named is None else named)
        table = {} if self._named else _KNOWN
        self._owners = [(owner, table.get(type(owner))) for owner in chain.stateful_optimizers]
        self.is_known = len(chain.optimizers) == 1 and None not in (known for _, known in self._owners)
        self.keeps_zeros = all(known is not None and known.keeps_zeros for _, known in self._owners)
        self._observations: list[Observation] = []

    def check_sharded(self, parameters: Iterable[nn.Parameter]) -> None:
        """What a process finds out from the rows that it holds, the others might not."""
        if not (self.is_known or self._named) and any(is_sharded(parameter) for parameter in parameters):
            raise CiglError(
                f"{type(self.optimizer).__name__} is not one of torch's optimizers, and with sharded parameters its "
                "states can't be found out: name those that have one number per weight with state=[...] (an empty "
                "list, if there are none)."
            )

    def of(self, parameter: nn.Parameter) -> list[StateTensor]:
        """The states of a parameter that are per weight, as far as is known."""
        found: list[StateTensor] = []
        for owner, known in self._owners:
            state = owner.state.get(parameter)
            if not state:
                continue
            if known is not None:
                shape = parameter.shape
                for name, fresh in known.states.items():
                    if name in state and (value := state[name]) is not None and value.shape == shape:
                        new = self._option(fresh, parameter) if isinstance(fresh, GroupOption) else fresh
                        found.append(StateTensor(name, local(value), new))
            if not self.is_known:
                for name, verdict in self.verdicts.items():
                    if verdict.per_weight and (view := _as_weights(state.get(name), parameter)) is not None:
                        found.append(StateTensor(name, view, verdict.fresh))
        return found

    def open(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The states of a parameter that may be per weight, but no step has shown it yet."""
        if self.is_known:
            return {}
        return {
            name: view
            for state in self._unknown(parameter)
            for name, value in state.items()
            if name not in self.verdicts and (view := _as_weights(value, parameter)) is not None
        }

    def _unknown(self, parameter: nn.Parameter) -> list[Mapping[str, Any]]:
        if self._named:
            return []
        return [owner.state.get(parameter, {}) for owner, known in self._owners if known is None]

    def _option(self, option: GroupOption, parameter: nn.Parameter) -> float:
        group = next(g for g in self.chain.groups if any(p is parameter for p in g["params"]))
        return float(next(group[name] for name in option.names if name in group))

    # Finding out

    def observe(self, layers: Sequence[Masked]) -> None:
        """Before a step: look at what it may decide."""
        self._observations = []
        for layer in () if self.is_known else layers:
            candidates = self.open(layer.parameter)
            if candidates or not all(self._unknown(layer.parameter)):
                self._observations.append(Observation.of(layer, candidates))

    def decide(self) -> None:
        """After the step, while Z is in force. One layer against a state is enough; dense ones come last."""
        observations, self._observations = self._observations, []
        for needs_z in (False, True):
            decided: dict[str, Verdict] = {}
            for observation in observations:
                if observation.needs_z is needs_z:
                    for name, verdict in observation.verdicts(self.open(observation.layer.parameter)).items():
                        if name not in decided or not verdict.per_weight:
                            decided[name] = verdict
            self.verdicts |= decided

    # Looking and resuming

    def describe(self, layers: Sequence[Masked]) -> str:
        """What was decided, where it is not an optimizer of torch's alone."""
        if self.is_known:
            return ""
        followed: dict[str, int] = {}
        undecided: dict[str, int] = {}
        others: dict[str, int] = {}
        for layer in layers:
            mine, maybe = [state.name for state in self.of(layer.parameter)], self.open(layer.parameter)
            for owner, _ in self._owners:
                for name, value in owner.state.get(layer.parameter, {}).items():
                    if isinstance(value, (list, tuple, dict)) or (isinstance(value, Tensor) and value.numel() > 1):
                        kind = followed if name in mine else undecided if name in maybe else others
                        kind[name] = kind.get(name, 0) + 1
        names = "(".join(type(part).__name__ for part in self.chain.optimizers) + ")" * (len(self.chain.optimizers) - 1)
        kinds = {"per weight": followed, "not per weight, left alone": others, "not decided yet": undecided}
        parts = [f"{kind}: {_counted(names, len(layers))}" for kind, names in kinds.items() if names]
        if self._named and (absent := [name for name in self.verdicts if name not in followed]):
            parts.append(f"named, but not there: {', '.join(absent)}")
        return f"state of {names}: {'; '.join(parts) or 'none yet'}"

    def restore(self, verdicts: Mapping[str, Verdict]) -> None:
        """What an earlier process has found out; what the user has named comes first."""
        if not self._named:
            self.verdicts |= verdicts


def _counted(names: Mapping[str, int], layers: int) -> str:
    return ", ".join(name if count == layers else f"{name} (of {count} layers)" for name, count in names.items())


def _read_names(named: Any) -> dict[str, Verdict]:
    """Names, or names with the value of a new weight's state, as ``attach(state=...)`` takes them."""
    if isinstance(named, str) or not isinstance(named, Iterable):
        raise CiglError(f"state is {named!r}: give the names of the optimizer's states in a list.")
    pairs = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, 0.0)
    for name, fresh in pairs.items():
        if not isinstance(name, str) or not (fresh == "weight" or is_number(fresh)):
            raise CiglError(
                f"state has {name!r}: {fresh!r}: give a state's name, and as its value for a new weight a number or "
                "'weight' for a copy of the weight."
            )
    return {name: Verdict(True, fresh) for name, fresh in pairs.items()}


def _as_weights(value: Any, parameter: nn.Parameter) -> Tensor | None:
    """A view of a state in the parameter's shape, if it is a float tensor with as many entries, as such or flat."""
    if not isinstance(value, Tensor) or type(value.data) is not type(parameter.data) or not value.is_floating_point():
        return None
    value, held = local(value), local(parameter)
    if value.shape == held.shape:
        return value if _is_dense(value) else None
    return value.view(held.shape) if value.shape == (held.numel(),) and value.is_contiguous() else None


def _is_dense(tensor: Tensor) -> bool:
    """Whether the entries fill a stretch of memory: not where a tensor was expanded or sliced."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
