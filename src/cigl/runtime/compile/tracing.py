"""A module's operations, from torch.fx; a part that can't be traced becomes one operation that torch runs."""

from __future__ import annotations

import dis
import inspect
import operator
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn

from cigl.common.copying import deep_copy, unwrap
from cigl.common.errors import CiglError
from cigl.common.text import first_line
from cigl.runtime.compile.aliases import own_tensor_changed
from cigl.runtime.compile.capture import HINT, Capture
from cigl.runtime.compile.parsing import is_known
from cigl.runtime.compile.questions import Questions, about_attribute, asker
from cigl.runtime.network.inputs import of_forward

_TORCH = str(Path(torch.__file__).parent)
_alone = threading.RLock()  # two that change nn.Module would not change it back


def _renew_lock() -> None:
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _recorded(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


class Proxy(fx.Proxy):
    """fx takes ``x += y`` for ``x = x + y``: then other names of the same tensor would miss the change.

    An assert is taken to hold. (fx can record it only up to Python 3.10.) To isinstance and hasattr, a stand-in answers
    for itself and not for what it stands for: that they were called is noted.
    """

    tracer: Tracer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance asks where the type itself doesn't answer it
        frame = inspect.currentframe()
        caller = asker(frame.f_back if frame else None)
        if caller is not None:
            self.tracer.questions.ask("asks for the type of a value", caller)
        return type(self)

    def __getattr__(self, name: str) -> Attribute:
        frame = inspect.currentframe()
        caller = asker(frame.f_back if frame else None)
        what = about_attribute(name, caller) if caller is not None else None
        if what is not None:
            self.tracer.questions.ask(what, caller)
        return Attribute(self, name)

    def __bool__(self) -> bool:
        frame = inspect.currentframe()
        return _is_asserted(frame.f_back if frame else None) or super().__bool__()

    __iadd__, __isub__, __imul__ = _recorded(operator.iadd), _recorded(operator.isub), _recorded(operator.imul)
    __itruediv__, __ifloordiv__ = _recorded(operator.itruediv), _recorded(operator.ifloordiv)
    __imod__, __ipow__ = _recorded(operator.imod), _recorded(operator.ipow)
    __iand__, __ior__, __ixor__ = _recorded(operator.iand), _recorded(operator.ior), _recorded(operator.ixor)


class Attribute(Proxy, fx.proxy.Attribute):
    """Of a stand-in."""


def _is_asserted(frame: FrameType | None) -> bool:
    """Whether the value that is asked for in this frame just now is that of an assert statement."""
    if frame is None:
        return False
    left = [each for each in dis.get_instructions(frame.f_code) if each.offset >= frame.f_lasti]
    asking = ("TO_BOOL", "COMPARE_OP", "NOT_TAKEN")  # from Python 3.13 on, a comparison asks for its own truth
    jump, after = [each for each in left if each.opname not in asking][:2]
    raises = after.opname == "LOAD_ASSERTION_ERROR" or after.argval in ("AssertionError", AssertionError)
    return "JUMP" in jump.opname and jump.opname.endswith("IF_TRUE") and raises


class Tracer(fx.Tracer):
    """fx, with optional arguments at their defaults: a condition on them is decided while tracing."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = Questions()
        self._thread = threading.get_ident()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """The graph; ``Asked`` if the forward asks what a graph can't know, also where it went on without an answer."""
        copied_root = sharing_parameters(root)  # which may keep stand-ins, or draw from what it holds
        before = [(name, buffer, buffer._version) for name, buffer in copied_root.named_buffers()]
        try:
            with _alone, self.questions.watching():
                graph = super().trace(copied_root, concrete_args)
        except Exception as error:
            raise self._reason(error, 0) from error
        self._refuse(0)
        at_once = (name for name, buffer, version in before if buffer._version != version)
        if changed := own_tensor_changed(graph) or next(at_once, ""):
            raise NotTraced(f"its forward changes {changed}, a tensor of its own, which a graph does not keep")
        for node in graph.nodes:
            if node.op == "get_attr" and not hasattr(root, str(node.target).partition(".")[0]):  # made while tracing
                setattr(root, str(node.target), getattr(copied_root, str(node.target)))
        return graph

    def _refuse(self, since: int) -> None:
        if len(self.questions.asked) > since:
            raise Asked(self.questions.asked[since])

    def _reason(self, error: Exception, since: int) -> Exception:
        """Why a forward stopped: what follows from a wrong answer is not the reason."""
        if "varnames" in str(error):  # co_varnames, from Python 3.11 on
            return NotTraced("torch.fx can't read a forward that is wrapped by another function with other arguments")
        if len(self.questions.asked) > since and not isinstance(error, fx.proxy.TraceError):
            return Asked(self.questions.asked[since])
        return error

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:  # torch.fx changes nn.Module while it traces, for all threads
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self._stopped(super().to_bool, obj))

    def iter(self, obj: fx.Proxy) -> Any:
        return self._stopped(super().iter, obj)

    def _stopped(self, ask: Callable[[fx.Proxy], Any], obj: fx.Proxy) -> Any:
        """fx raises an error, which a forward may catch."""
        try:
            return ask(obj)
        except fx.proxy.TraceError:
            self.questions.ask("uses a value for control flow", inspect.currentframe())
            raise

    def create_proxy(self, kind: str, target: Any, args: Any, *rest: Any, **more: Any) -> Any:
        if kind == "placeholder" and args:
            return args[0]
        return super().create_proxy(kind, target, args, *rest, **more)

    def proxy(self, node: fx.Node) -> Proxy:
        return Proxy(node, self)


class NotTraced(Exception):
    """Why there is no graph."""


class Asked(NotTraced):
    """A question as the reason."""

    def __init__(self, question: str):
        super().__init__(f"its forward {question}, which torch.fx can't follow")


class PartialTracer(Tracer):
    """Keeps submodules that can't be traced whole, and takes ``*args`` and ``**kwargs`` for empty."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []

    def create_proxy(self, kind: str, target: Any, *rest: Any, **more: Any) -> Any:
        if kind == "placeholder" and target.startswith("*"):
            return {} if target.startswith("**") else ()
        return super().create_proxy(kind, target, *rest, **more)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return super().call_module(m, forward, args, kwargs)
        before, stack = len(self.graph.nodes), self.module_stack.copy()
        asked = len(self.questions.asked)
        try:
            result = super().call_module(m, forward, args, kwargs)
            self._refuse(asked)
            return result
        except Exception as error:  # anything can go wrong in a forward that is given proxies
            for node in list(reversed(self.graph.nodes))[: len(self.graph.nodes) - before]:
                self.graph.erase_node(node)
            self.module_stack = stack  # fx pops it only where a forward returns
            proxy = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            self.stopped.append(f"{self.path_of_module(m)} can't be traced: {where(self._reason(error, asked))}")
            del self.questions.asked[asked:]  # torch runs it, with true tensors
            return proxy


class _LayerTracer(PartialTracer):
    """Looks into no layer that the engine knows, a subclass of torch's included."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return is_known(m) or super().is_leaf_module(m, qualified_name)


def where(error: BaseException) -> str:
    """What stopped the tracing, and the user's line that it happened in."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith(_TORCH) and line.filename != __file__]
    place = f" in {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else ""
    return f"{first_line(error)}{place}"


def copied(model: nn.Module) -> nn.Module:
    """A copy in eval mode, which later changes of the model don't reach."""
    if not isinstance(model, nn.Module):
        raise CiglError(f"sparse_inference needs a torch.nn.Module, not {type(model).__name__}.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise CiglError(f"the engine runs on the CPU, but {name} is on {tensor.device}: call model.cpu() first.")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise CiglError(f"the engine computes in float32, but {name} is {tensor.dtype}: call model.float() first.")
    with torch.no_grad():  # else copies of a scripted part are no leaves
        own = deep_copy(model).eval().requires_grad_(False)
    for parent in list(own.modules()):
        for name, part in parent.named_children():
            if unwrap(part) is not part:  # a part that was compiled can't have kernels inside
                parent._modules[name] = unwrap(part)
    return own


def sharing_parameters(model: nn.Module) -> nn.Module:
    """A copy with the same parameters: what else a call changes is its own."""
    return deep_copy(model, {id(each): each for each in model.parameters()})


def hooked(module: nn.Module) -> bool:
    """Whether it has hooks, which torch.fx passes over unless it looks into the module. (Ours do nothing in a copy.)"""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return not all(type(hook).__module__.startswith("cigl.") for hook in hooks)


def remove_asserts(graph: fx.Graph) -> None:
    """Checks of shapes, with what is computed for them alone: the inputs' shapes are checked by what computes."""
    wanted = [node for node in graph.nodes if node.target is torch._assert]
    while wanted:
        node = wanted.pop()
        before = node.all_input_nodes
        graph.erase_node(node)
        wanted += [each for each in before if not each.users and each.target in _ASKS and each not in wanted]


_COMPARISONS = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_}
_ASKS = {getattr, operator.getitem, operator.mod, "size", "dim", *_COMPARISONS}


def traced(model: nn.Module) -> Capture:
    """The graph, with submodules that stopped the tracing as one call each."""
    if hooked(model) or "forward" in vars(model):
        raise NotTraced(
            "torch.fx passes over the model's hooks, and over a forward that is not its class's; nn.Sequential(model) "
            "can be traced with them"
        )
    tracer = _LayerTracer()
    try:
        graph = tracer.trace(model)
        remove_asserts(graph)
    except Exception as error:
        raise NotTraced(f"the model can't be traced: {where(error)}{HINT}") from error
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    return Capture(graph, of_forward(model, names), notes=tracer.stopped)
