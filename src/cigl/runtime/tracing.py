"""A module's operations, from torch.fx; a part that can't be traced becomes one operation that torch runs."""

from __future__ import annotations

import copy
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from cigl.errors import CiglError

_TORCH = str(Path(torch.__file__).parent)


class Tracer(fx.Tracer):
    """fx, with optional arguments at their defaults, and with untraceable submodules kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        if kind == "placeholder" and (args or target.startswith("*")):
            return args[0] if args else ({} if target.startswith("**") else ())
        return super().create_proxy(kind, target, args, kwargs, *rest, **more)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        before = len(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # anything can go wrong in a forward that is given proxies
            for node in list(reversed(self.graph.nodes))[: len(self.graph.nodes) - before]:
                self.graph.erase_node(node)
            proxy = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            self.stopped.append(f"{self.path_of_module(m)} runs dense as a whole: {where(error)}")
            return proxy


def where(error: BaseException) -> str:
    """What stopped the tracing, and the user's line that it happened in."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith(_TORCH) and line.filename != __file__]
    place = f" in {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else ""
    return f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}{place}"


def copied(model: nn.Module) -> nn.Module:
    """A copy in eval mode, which later changes of the model don't reach."""
    if not isinstance(model, nn.Module):
        raise CiglError(f"sparse_inference needs a torch.nn.Module, not {type(model).__name__}.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise CiglError(f"the engine runs on the CPU, but {name} is on {tensor.device}: call model.cpu() first.")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise CiglError(f"the engine computes in float32, but {name} is {tensor.dtype}: call model.float() first.")
    try:
        return copy.deepcopy(model).eval().requires_grad_(False)
    except RuntimeError as error:
        raise CiglError(
            f"the model can't be copied ({error}): make pruning and parametrizations permanent first "
            "(torch.nn.utils.prune.remove, cigl's finalize)."
        ) from error


def traced(model: nn.Module) -> tuple[fx.Graph | None, list[str]]:
    """The graph, or None if even the outermost forward can't be traced; and what stopped it where."""
    tracer = Tracer()
    try:
        return tracer.trace(model), tracer.stopped
    except Exception as error:
        return None, [f"the model runs dense: {where(error)}"]
