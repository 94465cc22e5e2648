"""Copies of an attached model: nothing of this package acts in them, and what ``finalize`` returns holds none of it.

torch's own deep copy refuses a model that FSDP2 has sharded. So the copy is made of the modules as they were before
``fully_shard``, with parameters that have no memory; then it is sharded as the model is, or its parameters are
gathered. In the first case no process ever holds a whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.copying import deep_copy
from cigl.common.errors import CiglError
from cigl.sparsify.loop.binding import remove_hooks
from cigl.sparsify.loop.detached import DetachedSparsifier
from cigl.sparsify.tensors.shards import has_shards, is_sharded, like, local

_OWN = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")  # fully_shard's attributes
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")


@torch.no_grad()
def plain_copy(model: nn.Module, values: Mapping[str, Tensor], whole: bool = False) -> nn.Module:
    """With these ``values`` (local rows, or buffers) in place of its own; ``whole``: not sharded, even if it is."""
    if has_shards(model):
        return _copy_sharded(model, values, whole)
    copied = deep_copy(model)
    _strip_cigl(copied)
    tensors = dict(copied.named_parameters()) | dict(copied.named_buffers())
    for name, value in values.items():
        if name not in tensors:
            raise CiglError(
                f"{name} was removed from the model after cigl.attach: detach, and attach to the new model."
            )
        tensors[name].copy_(value)
    for parameter in copied.parameters():
        parameter.grad = None
    return copied


def _strip_cigl(model: nn.Module) -> None:
    """Take what is left of this package out of a copy."""
    remove_hooks(model)
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, DetachedSparsifier)]:
            del vars(module)[name]


def _copy_sharded(model: nn.Module, values: Mapping[str, Tensor], whole: bool) -> nn.Module:
    """``whole``: gathered, on every process."""
    parameters = dict(model.named_parameters())
    device = {name: "meta" if is_sharded(p) and not whole else local(p).device for name, p in parameters.items()}
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device=device[name]), p.requires_grad)
        for name, p in parameters.items()
    }
    with _as_before_sharding(model):
        copied = deep_copy(model, memo)
    _strip_cigl(copied)
    if not whole:
        _shard_alike(model, copied)
    for name, parameter in copied.named_parameters():
        value = values.get(name, local(parameters[name]))
        if whole and is_sharded(parameters[name]):
            value = like(parameters[name], value.contiguous()).full_tensor()  # type: ignore[attr-defined]
        local(parameter).copy_(value)
    for name, buffer in copied.named_buffers():
        if name in values:
            buffer.copy_(values[name])
    return copied


@contextmanager
def _as_before_sharding(model: nn.Module) -> Iterator[None]:
    """Without FSDP's classes, attributes and hooks, for the time of a deep copy."""
    before = [(module, type(module), dict(vars(module))) for module in model.modules()]
    ids = {number for state in _states(model) for number in _hooks_of(state)}
    try:
        for module in model.modules():
            if _is_fsdp(module):
                module.__class__ = type(module).__mro__[2]  # FSDPLinear, FSDPModule, Linear
            for name in [name for name in vars(module) if name.startswith(_OWN)]:
                del vars(module)[name]
            for kind in _HOOKS:
                hooks = getattr(module, kind)
                vars(module)[kind] = type(hooks)((n, hook) for n, hook in hooks.items() if n not in ids)
        yield
    finally:
        for module, kind_of_module, attributes in before:
            module.__class__ = kind_of_module
            vars(module).clear()
            vars(module).update(attributes)


def _shard_alike(model: nn.Module, copied: nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    twins = dict(zip(model.modules(), copied.modules(), strict=True))
    pairs = zip(model.parameters(), copied.parameters(), strict=True)
    ignored = {twin for parameter, twin in pairs if not is_sharded(parameter)}
    for state in _states(model):
        modules = [twins[module] for module in state._modules]
        group = next(iter(state._fsdp_param_groups), None)
        if group is None:
            continue  # it has no parameters of its own
        fully_shard(
            modules[0] if len(modules) == 1 else modules,
            mesh=group.mesh_info.mesh,
            reshard_after_forward=_after_forward(state, group),
            mp_policy=state._mp_policy,
            offload_policy=group.offload_policy,
            ignored_params=ignored,
        )
    buffers = [(module, dict(module._buffers)) for module in copied.modules()]
    copied.to_empty(device=next(local(p).device for p in model.parameters()))
    for module, values in buffers:  # they are copies already
        module._buffers.update(values)


def _after_forward(state: Any, group: Any) -> bool | int | None:
    if state._auto_reshard_after_forward:
        return None
    mesh = group.post_forward_mesh_info
    size = getattr(mesh, "shard_mesh_size", None)
    return bool(mesh) if size is None or size == group.mesh_info.shard_mesh_size else int(size)


def _is_fsdp(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _states(model: nn.Module) -> list[Any]:
    """FSDP's, one per call of fully_shard, inner modules first."""
    found = [module._get_fsdp_state() for module in model.modules() if _is_fsdp(module)]  # type: ignore[operator]
    return list({id(state): state for state in reversed(found)}.values())


def _hooks_of(state: Any) -> Iterator[int]:
    handles = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
    for group in state._fsdp_param_groups:
        handles += group._module_to_pre_save_state_dict_hook_handle.values()
        handles += group._module_to_pre_load_state_dict_hook_handle.values()
    for handle in handles:
        for one in getattr(handle, "handles", (handle,)):
            yield one.id
