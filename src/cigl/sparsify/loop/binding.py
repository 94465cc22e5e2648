"""The hooks: how a user's unchanged loop reports what is happening.

    model(x)           -> on_forward(module)           once per call, of the root or of whichever part is called
    loss.backward()    -> on_dense_gradient(layer, g)  a micro-batch's, before it is accumulated
                       -> on_gradient(layer)           when a selected parameter's p.grad is complete
    optimizer.step()   -> on_step_begin(), on_step_end()   not for steps that a GradScaler skips
    load_state_dict()  -> on_load_begin(), on_load_end()   of the model, a part of it, or the optimizer (end only)

Nothing of it survives in copies: a deep copy or a pickle of the model holds inert hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.sparsify.optimizers.wrappers import OptimizerChain, load_hooks
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import is_sharded


class Listener(Protocol):
    def on_forward(self, module: nn.Module) -> None: ...
    def on_dense_gradient(self, layer: Layer, gradient: Tensor) -> None: ...
    def on_gradient(self, layer: Layer) -> None: ...
    def on_step_begin(self) -> None: ...
    def on_step_end(self) -> None: ...
    def on_load_begin(self) -> None: ...
    def on_load_end(self) -> None: ...


class Hook:
    """A hook on a module that belongs to one live sparsifier; its copies do nothing.

    In a compiled graph it is traced away (``torch.compile`` calls the root's hooks outside the graph).
    """

    def __init__(self, function: Callable[..., Any] | None = None):
        self.function = function

    def __call__(self, *args: Any) -> None:
        if self.function is not None and not torch.compiler.is_compiling():
            self.function(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class OpaqueHook(Hook):
    """The root's: never traced, so that it acts also when the root's whole call is compiled."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any) -> None:
        if self.function is not None:
            self.function(*args)


_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def remove_hooks(model: nn.Module) -> None:
    """Take the inert hooks out of a copy, so that nothing of this package is left in it."""
    for module in model.modules():
        for kind in _HOOKS:
            hooks = getattr(module, kind)
            for number in [n for n, hook in hooks.items() if isinstance(getattr(hook, "hook", hook), Hook)]:
                del hooks[number]
                module._forward_hooks_always_called.pop(number, None)


def is_attached(model: nn.Module) -> bool:
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return any(isinstance(hook, Hook) and hook.function is not None for hook in hooks)


class Binding:
    """All hooks of one sparsifier; ``remove`` takes them out again."""

    def __init__(self, model: nn.Module, chain: OptimizerChain, layers: Iterable[Layer], listener: Listener):
        self._model, self._optimizer, self._listener = model, chain.stepping, listener
        self._chain = chain
        self._is_skipped = False  # the step that is being taken
        self._inside = False  # a forward of the root is under way: it alone decides about Z
        self._handles: list[Any] = []
        try:
            self._register(layers)
        except BaseException:  # all hooks, or none
            self.remove()
            raise
        # Hooks that come after a compiled run of the model would be left out of it in silence.
        torch.compiler.reset()

    def renew(self, layers: Iterable[Layer]) -> None:
        """The layers have other parameters, and other hooks may have come before ours."""
        self.remove()
        self._register(layers)

    def _register(self, layers: Iterable[Layer]) -> None:
        model, optimizer, listener = self._model, self._optimizer, self._listener
        # Prepended, so that no hook of the user's sees the weights before Z acts on them.
        self._add(model.register_forward_pre_hook(OpaqueHook(self._enter_root), prepend=True))
        self._add(model.register_forward_hook(OpaqueHook(self._leave_root), always_call=True))
        parts: dict[int, nn.Module] = {}
        for layer in layers:
            for module in layer.selected.call_sites(model):
                parts[id(module)] = module
            for owner in layer.selected.owners:
                hook = Hook(_true_weights(layer, owner.attribute))
                self._add(owner.module.register_state_dict_post_hook(hook))
            _on_gradient(layer, listener, self._handles)
            self._add(TrueCopies(layer))
        for module in parts.values():
            if module is not model:
                self._add(module.register_forward_pre_hook(Hook(self._enter_part), prepend=True))
        for module in {id(model): model, **parts}.values():
            self._add(module.register_load_state_dict_pre_hook(Hook(lambda *_: listener.on_load_begin())))
            self._add(module.register_load_state_dict_post_hook(Hook(lambda *_: listener.on_load_end())))
        self._add(optimizer.register_step_pre_hook(self._before_step))
        after = optimizer.register_step_post_hook(self._after_step)
        self._add(after)
        # Prepended, so that hooks of the user's see M*W.
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]
        self._handles += load_hooks(self._chain, lambda _: listener.on_load_end())

    def _add(self, handle: Any) -> None:
        self._handles.append(handle)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        torch.compiler.reset()

    def _enter_root(self, module: nn.Module, _: Any) -> None:
        if module is not self._model:
            raise CiglError(
                "a replica of the model was called (DataParallel), whose weights were copied before the masks "
                "act: use DistributedDataParallel."
            )
        self._listener.on_forward(module)
        self._inside = True

    def _leave_root(self, *_: Any) -> None:
        self._inside = False

    def _enter_part(self, module: nn.Module, _: Any) -> None:
        if not self._inside:
            self._listener.on_forward(module)

    def _skipped(self) -> bool:
        """Fused optimizers are called also for a step that the GradScaler has decided to skip."""
        found = getattr(self._optimizer, "found_inf", None)
        return found is not None and bool(found.item())

    def _before_step(self, *_: Any) -> None:
        self._is_skipped = self._skipped()  # on a GPU the host waits for it: once is enough
        if not self._is_skipped:
            self._listener.on_step_begin()

    def _after_step(self, *_: Any) -> None:
        if not self._is_skipped:
            self._listener.on_step_end()


def _true_weights(layer: Layer, attribute: str) -> Callable[..., None]:
    """``state_dict()`` holds M*W also while Z is in force."""

    def hook(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        if layer.suspended is not None and prefix + attribute in state:
            state[prefix + attribute] = layer.whole(layer.true_weight())

    return hook


def _on_gradient(layer: Layer, listener: Listener, handles: list[Any]) -> None:
    parameter, trainable = layer.parameter, layer.parameter.requires_grad
    # Weak, because a tensor's hooks are out of the garbage collector's sight: a cycle would live forever.
    weak_layer, weak_listener = weakref.ref(layer), weakref.ref(listener)

    def before(gradient: Tensor) -> None:
        layer, listener = weak_layer(), weak_listener()
        if layer is not None and listener is not None:
            listener.on_dense_gradient(layer, gradient)

    def after(_: Tensor) -> None:
        layer, listener = weak_layer(), weak_listener()
        # a custom backward may return None, which torch reports like a gradient
        if layer is not None and listener is not None and layer.parameter.grad is not None:
            listener.on_gradient(layer)

    try:
        parameter.requires_grad_(True)  # a frozen weight can't take the hook, but may be unfrozen later
        if not is_sharded(parameter):  # of a sharded one, FSDP shows the reduced gradient alone
            handles.append(parameter.register_hook(before))
        handles.append(parameter.register_post_accumulate_grad_hook(after))
    finally:
        parameter.requires_grad_(trainable)


_COPYING = ("__deepcopy__", "__reduce_ex__")


class TrueCopies:
    """Deep copies and pickles of the parameter are made of M*W, also while Z is in force."""

    def __init__(self, layer: Layer):
        self._layer = layer
        self._before = {name: value for name, value in vars(layer.parameter).items() if name in _COPYING}
        layer.parameter.__deepcopy__ = self._copy  # type: ignore[method-assign]
        layer.parameter.__reduce_ex__ = self._reduce  # type: ignore[method-assign]

    def remove(self) -> None:
        for attribute in _COPYING:
            vars(self._layer.parameter).pop(attribute, None)
        vars(self._layer.parameter).update(self._before)

    def _copy(self, memo: dict[int, Any]) -> nn.Parameter:
        parameter = self._layer.parameter
        if id(parameter) not in memo:
            weight = self._layer.whole(self._layer.true_weight())
            memo[id(parameter)] = nn.Parameter(weight, parameter.requires_grad)
        copied: nn.Parameter = memo[id(parameter)]
        return copied

    def _reduce(self, protocol: Any) -> Any:
        parameter = self._layer.parameter
        plain = nn.Parameter(self._layer.whole(self._layer.true_weight()), parameter.requires_grad)
        plain.__dict__.update({name: value for name, value in parameter.__dict__.items() if name not in _COPYING})
        return plain.__reduce_ex__(protocol)
