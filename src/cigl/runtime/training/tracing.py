"""A model in training as a network of units, and the shapes of its values, without running it.

Tracing and shapes come from a copy on torch's meta device, which has no data: no statistic moves, no random number is
drawn, and nothing of the size of the model is copied.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.aliases import SharedMemory
from cigl.runtime.compile.lowering import Lowering
from cigl.runtime.compile.network import Network
from cigl.runtime.compile.tracing import PartialTracer, hooked, where
from cigl.runtime.program.steps import Shape
from cigl.sparsify.binding import remove_hooks


class Untraceable(Exception):
    """Why a model can't be run as a whole; its layers may be, one by one."""


class _Tracer(PartialTracer):
    """Modules with hooks of the user's, or whose forward is not the same each time, are called as they are."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return is_watched(m) or super().is_leaf_module(m, qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        def checked(*args: Any, **kwargs: Any) -> Any:
            with _the_same_each_time(m):
                return forward(*args, **kwargs)

        return super().call_module(m, checked, args, kwargs)


def is_watched(module: nn.Module) -> bool:
    """Whether somebody else's code runs with its calls."""
    return hooked(module) or bool(module._backward_hooks or module._backward_pre_hooks) or "forward" in vars(module)


@contextmanager
def _the_same_each_time(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that draws random numbers while it is traced, or leaves something in its module: a trace would
    repeat the first draw for ever, and leave nothing.
    """
    states, before = _random_states(), dict(vars(module))
    versions = [buffer._version for buffer in module.buffers(recurse=False)]
    yield
    if _random_states() != states:
        _set_random_states(states)
        raise Untraceable("it draws random numbers of fixed size, or outside torch")
    now = vars(module)
    changed = [name for name in now if name not in before or now[name] is not before[name]]
    if changed or [buffer._version for buffer in module.buffers(recurse=False)] != versions:
        raise Untraceable(f"it changes its module ({', '.join(changed) or 'a buffer'})")


def _random_states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (kind, keys.tobytes(), *rest)


def _set_random_states(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(states[0]), dtype=torch.uint8))
    random.setstate(states[1])
    kind, keys, *rest = states[2]
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))


class TracedModel:
    """The network of a model in its present mode."""

    def __init__(self, model: nn.Module):
        self._twin = _without_data(model)
        remove_hooks(self._twin)
        tracer = _Tracer()
        states = _random_states()
        try:
            with _the_same_each_time(self._twin):
                graph = tracer.trace(self._twin)
            self.network: Network = Lowering(self._twin, graph, tracer.stopped).network
        except (SharedMemory, Untraceable) as error:
            raise Untraceable(str(error)) from error
        except Exception as error:  # anything can go wrong in a forward that is given proxies
            raise Untraceable(where(error)) from error
        finally:
            _set_random_states(states)
        for module in self._twin.modules():  # the user's hooks are for the model itself
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                hooks.clear()

    def shapes(self, inputs: Sequence[Tensor]) -> dict[int, Shape]:
        """Of all values, for inputs like these."""
        values: dict[int, Any] = dict(self.network.constants)
        twins = [torch.empty_like(each, device="meta") for each in inputs]
        values |= zip(self.network.inputs, twins, strict=True)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for unit in self.network.units:
                    arguments = [values[value] for value in unit.inputs]
                    if unit.module is None or isinstance(unit.operation, op.InTorch):
                        result = unit.operation.dense(*arguments)
                    else:
                        result = self._twin.get_submodule(unit.module)(*arguments)
                    values[unit.outputs[0]] = result
        except Exception as error:  # an operation that needs data, or that the meta device doesn't have
            raise Untraceable(where(error)) from error
        return {value: _shape(each) for value, each in values.items()}


def _without_data(model: nn.Module) -> nn.Module:
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise Untraceable(f"the model can't be copied ({' '.join(str(error).split())[:200]})") from error


def _shape(value: Any) -> Shape:
    known = isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim() and value.numel()
    return tuple(value.shape) if known else None


def live_value(model: nn.Module, path: str) -> Any:
    found: Any = model
    for part in path.split("."):
        found = getattr(found, part)
    return found


def arguments_of(network: Network, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """The network's inputs from a call's arguments, or None if the call has others."""
    if len(args) > len(network.names):
        return None
    given = dict(zip(network.names, args, strict=False))
    if given.keys() & kwargs.keys() or given.keys() | kwargs.keys() != set(network.names):
        return None
    given |= kwargs
    return [given[name] for name in network.names]
