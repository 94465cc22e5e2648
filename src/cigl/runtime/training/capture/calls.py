"""Modules whose calls are taken over, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import skip_code

Forward = Callable[..., Any]


class _Call:
    """What is called instead of a module. A copy or a pickle has None there: the module's own call.

    torch leaves the attribute out of copies, but not where a class has a ``__getstate__`` of its own (LightningModule):
    the copy would run the original.
    """

    def __init__(self, function: Forward):
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


class _RootCall(_Call):
    """The root's, which a ``torch.compile`` of the user's leaves as it is, and looks into what it calls."""

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class TakenCalls:
    """Modules with a call of ours, in the attribute that ``module.compile()`` uses."""

    def __init__(self) -> None:
        self._calls: dict[nn.Module, _Call] = {}

    def take(self, module: nn.Module, call: Forward, is_root: bool) -> None:
        """Call this instead of the module."""
        taken = _RootCall(torch.compiler.disable(call, recursive=False)) if is_root else _Call(call)
        if (
            not is_root
        ):  # Dynamo may look into it from a forward, but not begin with it: there is nothing to capture yet
            for function in (call, _Call.__call__):
                skip_code(function.__code__)
        self._calls[module] = module._compiled_call_impl = taken

    def has(self, module: nn.Module) -> bool:
        """Whether its call is still ours: the user may have compiled it since."""
        return module._compiled_call_impl is self._calls.get(module)

    @contextmanager
    def given_back(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """These for a while, and then ours again."""
        own = [module for module in modules if self.has(module)]
        for module in own:
            vars(module).pop("_compiled_call_impl")
        try:
            yield
        finally:
            for module in own:
                module._compiled_call_impl = self._calls[module]

    def remove(self) -> None:
        """Give every module its own call back."""
        for module in self._calls:
            if self.has(module):
                vars(module).pop("_compiled_call_impl")
        self._calls.clear()


@contextmanager
def forward_of(module: nn.Module, forward: Forward) -> Iterator[None]:
    """``forward(own, args, kwargs)`` stands in for the module's own, for one call, with all hooks around it."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:  # with what the module's hooks have made of the arguments
        vars(module).pop("forward", None)
        return forward(module.forward, args, kwargs)

    vars(module)["forward"] = stand_in
    try:
        yield
    finally:
        vars(module).pop("forward", None)
