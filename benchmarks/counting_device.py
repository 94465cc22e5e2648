"""A device that counts: its tensors have addresses that the host can't read, and every operation on them is seen.

It is registered with torch as a backend of its own, "counted". What an operation computes is computed on the CPU, in
memory that only this module knows. Counted are

    operations   aten operations that compute something: views and allocations are none
    launches     the same, where one on a list of tensors (``torch._foreach_*``, fused optimizers, ``cat``) is as many
                 as CUDA's implementation cuts it into
    bytes        read and written by these, each tensor once
    reads        by the host, which waits: ``item``, ``tolist``, ``cpu``, ``equal``, and sizes that depend on numbers
    copies       from the host
    later        copies to the host that it does not wait for

Import it in a process of its own: a backend can't be unregistered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "counted"
_READS = {
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "is_nonzero",
    "bincount",
    "_unique2",
    "unique_dim",
}
_MATH_ATTENTION = 0
# CUDA's multi_tensor_apply: tensors and blocks per launch, elements per block
_TENSORS, _TENSORS_WITH_SCALARS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}, {1: 96, 2: 64, 3: 48, 4: 36, 5: 30}
_BLOCKS, _CHUNK, _CAT = 320, 65536, 128


@dataclass
class Counts:
    operations: int = 0
    launches: int = 0
    bytes: int = 0
    reads: int = 0
    copies: int = 0
    later: int = 0
    names: list[str] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)  # of each operation: what it was given besides tensors


_counting: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """What happens on the device meanwhile, on any thread."""
    counts = Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


class Event:
    """All copies have arrived when somebody asks: the earliest that may be."""

    def __init__(self, *args: Any, **kwargs: Any): ...
    def record(self, *args: Any) -> None: ...
    def synchronize(self) -> None:
        _count(reads=1)

    def query(self) -> bool:
        return True


class _Module:
    """``torch.counted``."""

    Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


# Memory

_memory: dict[int, torch.UntypedStorage] = {}
_alive: dict[int, int] = {}  # weak references to the device's storages
_next = [1 << 44]


def _allocate(nbytes: int, held: torch.UntypedStorage) -> torch.UntypedStorage:
    address = _next[0]
    _next[0] += max(512, -(-nbytes // 512) * 512)
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device(NAME, 0), nbytes)
    _memory[address], _alive[address] = held, storage._weak_ref()
    if len(_memory) % 1024 == 0:
        for place in [p for p, reference in _alive.items() if torch.UntypedStorage._expired(reference)]:
            torch.UntypedStorage._free_weak_ref(_alive.pop(place))
            del _memory[place]
    return storage


def _tensor(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    result = torch._C._acc.create_empty_tensor((0,), like.dtype)
    place = (like.storage_offset(), like.size(), like.stride())
    torch.ops.aten.set_.source_Storage_storage_offset._op_dk(torch._C.DispatchKey.CPU, result, storage, *place)
    return result


def _on_host(tensor: Tensor) -> Tensor:
    held = _memory[tensor.untyped_storage().data_ptr()]
    place = (tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(held, *place)


def _is_mine(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


# Operations


def _count(**numbers: int) -> None:
    for counts in _counting:
        for name, number in numbers.items():
            setattr(counts, name, getattr(counts, name) + number)


def _launches(name: str, args: Any, kwargs: Any) -> int:
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)) and a and _is_mine(a[0])]
    if name == "cat":
        return -(-len(args[0]) // _CAT)
    if not lists:
        return 1
    has_scalars = any(isinstance(a, (list, tuple)) and a and not isinstance(a[0], Tensor) for a in args)
    limit = (_TENSORS_WITH_SCALARS if has_scalars else _TENSORS)[min(5, len(lists))]
    launches = tensors = blocks = 0
    for number, tensor in enumerate(lists[0]):
        tensors += 1
        chunks = max(1, math.ceil(tensor.numel() / _CHUNK))
        for chunk in range(chunks):
            blocks += 1
            is_last = number == len(lists[0]) - 1 and chunk == chunks - 1
            if blocks == _BLOCKS or (tensors == limit and chunk == chunks - 1) or is_last:
                launches += 1
                blocks, tensors = 0, 0 if chunk == chunks - 1 else 1
    return launches


def _run(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "_fused_sdp_choice":
        return _MATH_ATTENTION
    mine: dict[int, tuple[Tensor, Tensor]] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def to_host(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        if not _is_mine(value):
            return value
        host = _on_host(value)
        mine[id(host)] = host, value
        storages[host.untyped_storage()._cdata] = value.untyped_storage()
        return host

    def to_device(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in mine:
            return mine[id(value)][1]
        held = value.untyped_storage()
        storage = storages.get(held._cdata)
        return _tensor(_allocate(held.nbytes(), held) if storage is None else storage, value)

    host_args, host_kwargs = tree_map(to_host, args), tree_map(to_host, kwargs)
    host_kwargs.pop("pin_memory", None)
    result = _call(op, name, host_args, host_kwargs)
    _note(op, name, args, kwargs, host_args, result, storages)
    if name == "copy_":
        return args[0]
    if name == "_to_copy" and (device := kwargs.get("device")) is not None and torch.device(device).type != NAME:
        return result
    return tree_map(to_device, result)


def _call(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "convolution_overrideable":
        return torch.ops.aten.convolution.default(*args, **kwargs)
    if name == "convolution_backward_overrideable":
        dy, x, w, stride, padding, dilation, transposed, output_padding, groups, mask = args
        return torch.ops.aten.convolution_backward.default(
            dy, x, w, None, stride, padding, dilation, transposed, output_padding, groups, mask
        )
    with torch.no_grad():
        return op(*args, **kwargs)


def _note(op: Any, name: str, args: Any, kwargs: Any, host_args: Any, result: Any, storages: Any) -> None:
    if name in ("copy_", "_to_copy"):
        target = args[0] if name == "copy_" else kwargs.get("device") or args[0].device
        source = args[1] if name == "copy_" else args[0]
        to_device = _is_mine(target) or (not isinstance(target, Tensor) and torch.device(target).type == NAME)
        waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        if not to_device:
            _count(**{"reads" if waits else "later": 1})
            return
        if not _is_mine(source):
            _count(copies=1)
            return
    if name in _READS:
        _count(reads=1)
    if name.startswith(("empty", "new_empty", "_local_scalar", "resize", "set_")):
        return
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    writes = op._schema.is_mutable
    if not writes and outputs and all(out.untyped_storage()._cdata in storages for out in outputs):
        return  # views
    tensors = {leaf.data_ptr(): leaf for leaf in [*tree_leaves(host_args), *outputs] if isinstance(leaf, Tensor)}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    _count(operations=1, launches=_launches(name, args, kwargs), bytes=size)
    for counts in _counting:
        counts.names.append(name)
        counts.numbers.append([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, (int, float, bool))])


def _implementation(full: str) -> Callable[..., Any]:
    name, _, overload = full.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    return lambda *args, **kwargs: _run(op, name, args, kwargs)


def _register() -> list[torch.library.Library]:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    for full in torch._C._dispatch_get_all_op_names():
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        if full.startswith("aten::") and not composite and full != "aten::detach":  # Parameter() needs torch's own
            library.impl(full.removeprefix("aten::"), _implementation(full), "PrivateUse1")
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # it casts nothing
    return [library, rest]


_LIBRARIES = _register()
