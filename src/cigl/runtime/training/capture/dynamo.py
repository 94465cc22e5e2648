"""A model's forward as graphs, from TorchDynamo.

Dynamo guards all that a graph depends on (attributes, globals, types, gradient mode) and captures another one when it
has changed. Regions without gradients, autocast and custom autograd functions stand in the graph; what a forward leaves
in its module or elsewhere is left there by Dynamo's own code, after the graph has run.
"""

from __future__ import annotations

import logging
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch import fx, nn
from torch._dynamo.variables.misc import RandomVariable

from cigl.runtime.training.capture.graphs import Unfaithful, check_faithful

LONG = 1.0  # seconds that a capture may take before a message says what it was
_TORCH = str(Path(torch.__file__).parent)
_log = logging.getLogger("cigl")


# Of Dynamo, for the time of a call. By default it trusts that much stays as it was when it looked.
_SETTINGS = {
    "skip_nnmodule_hook_guards": False,  # hooks may come and go
    "skip_tensor_guards_with_matching_dict_tags": False,  # and parameters be frozen
    "assume_dunder_attributes_remain_unchanged": False,
    "trace_numpy": False,  # whose random numbers would become torch's
    "optimize_ddp": False,  # it would cut graphs where DDP's buckets end
}


_LOUD = ("torch._dynamo", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")  # with handlers


class Mode(Enum):
    """How much of a forward is captured."""

    WHOLE = "as one graph"
    PARTS = "as graphs between which Python runs"
    LAYERS = "not at all: layers are taken over one by one"


class NotCaptured(Exception):
    """Why a forward is not one graph."""


class _New(Exception):
    """A call that no graph was captured for."""


class Capture:
    """Calls a model's forward by way of Dynamo.

    ``run`` makes what is called in place of a graph. ``uncaptured`` is called before a forward that Dynamo leaves to
    Python as a whole, whatever the reason.
    """

    def __init__(
        self, model: nn.Module, run: Callable[[fx.GraphModule], Callable[..., Any]], uncaptured: Callable[[], None]
    ):
        self.mode = Mode.WHOLE
        self._run, self._uncaptured = run, uncaptured
        self._is_known = False  # the graph must be one that was captured before
        entry = _entry(model, self._in_python)
        self._known = torch._dynamo.run(entry)
        self._functions = {
            Mode.WHOLE: torch.compile(entry, backend=self._backend, fullgraph=True),
            Mode.PARTS: torch.compile(_entry(model, self._in_python), backend=self._backend),
        }
        self._since = 0.0

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """The forward as one graph; ``NotCaptured`` before anything has happened if it can't be."""
        try:
            self._is_known = True
            return self._known(*args, **kwargs)
        except _New:
            pass
        finally:
            self._is_known = False
        return self._captured(args, kwargs)

    def _captured(self, args: Any, kwargs: Any) -> Any:
        exc = torch._dynamo.exc
        try:
            return self._called(Mode.WHOLE, args, kwargs)
        except exc.FailOnRecompileLimitHit as error:
            raise NotCaptured("its settings change again and again") from error
        except exc.BackendCompilerFailed as error:
            inner = error.inner_exception
            if isinstance(inner, Unfaithful):
                self.mode = Mode.LAYERS
                raise NotCaptured(str(inner)) from error
            raise
        except exc.TorchDynamoException as error:
            raise NotCaptured(_reason(error)) from error

    def _in_python(self) -> None:
        """Dynamo has no graph for a call, and leaves it to Python."""
        if self._is_known:
            raise _New
        self._uncaptured()

    def parts(self, *args: Any, **kwargs: Any) -> Any:
        """The forward with Python between its graphs."""
        return self._called(Mode.PARTS, args, kwargs)

    def _called(self, mode: Mode, args: Any, kwargs: Any) -> Any:
        with _settings(mode is Mode.PARTS):
            self._since = time.perf_counter()
            return self._functions[mode](*args, **kwargs)

    def _backend(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        check_faithful(module.graph)
        if (seconds := time.perf_counter() - self._since) > LONG:
            _log.warning("captured the forward for sparse kernels in %.1f s, once for each kind of call", seconds)
        return self._run(module)


def _say_nothing(*_: Any, **__: Any) -> None: ...


@contextmanager
def _settings(in_parts: bool) -> Iterator[None]:
    """Dynamo's, and its silence about what it can't capture: we say it."""
    loud = [(handler, handler.level) for name in _LOUD for handler in logging.getLogger(name).handlers]
    for handler, _ in loud:
        handler.setLevel(logging.CRITICAL)
    try:
        with (
            torch._dynamo.config.patch({**_SETTINGS, "suppress_errors": in_parts}),
            mock.patch.object(torch._dynamo.utils, "warn_once", _say_nothing),
            # it draws from a generator while it captures, and would repeat that draw
            mock.patch.object(RandomVariable, "is_supported_random_obj", staticmethod(lambda _: False)),
        ):
            yield
    finally:
        for handler, level in loud:
            handler.setLevel(level)


def _entry(model: nn.Module, uncaptured: Callable[[], None]) -> Callable[..., Any]:
    """The forward as a function with a code object and globals of its own: what Dynamo remembers of it counts for this
    model alone, and goes with it.
    """

    def entry(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            uncaptured()
        return model.forward(*args, **kwargs)

    own = {"torch": torch, "__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(entry.__code__.replace(), own, "entry", None, entry.__closure__)


def _reason(error: Exception) -> str:
    """The first sentence of Dynamo's report, with the user's line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = lines[0] if lines else type(error).__name__
    places = [n for n, line in enumerate(lines) if line.startswith("File ") and _TORCH not in line]
    if not places:
        return what
    file, _, rest = lines[places[-1]].removeprefix('File "').partition('", line ')
    code = lines[places[-1] + 1] if places[-1] + 1 < len(lines) else ""
    return f"{what} in {file}, line {rest.partition(',')[0]}: {code}"
