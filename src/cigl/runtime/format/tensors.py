"""A model's tensors as the file has them: sparse or dense, whichever is smaller, and tied ones once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.runtime.format import gaps
from cigl.runtime.format.container import DTYPES, NAMES, Damaged, is_shape

# What a file's tensors may take in memory: so many times the bytes of those it stores, or this much.
EXPANSION, SMALL = 256, 1 << 26
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_UNCOUNTED = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)
_ENTRY = 128  # bytes that one more entry costs in the header


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by all of their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def pack(model: nn.Module, half: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What to store, and the index of what it means: ``{name: {"dtype", "shape", "kind"} or {"same": other}}``."""
    index: dict[str, Any] = {}
    first: dict[int, str] = {}
    plains: dict[str, Tensor] = {}
    size = 0  # of all of them in memory
    for name, tensor in named_tensors(model).items():
        owner = first.setdefault(id(tensor), name)
        if owner != name:
            index[name] = {"same": owner}
            continue
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        plain = _plain(name, tensor)
        index[name] = {"dtype": NAMES[plain.dtype], "shape": list(plain.shape), "kind": kind}
        if half and kind == "parameter" and plain.dim() > 1 and plain.dtype in (torch.float32, torch.float64):
            plain = _halved(name, plain)
        plains[name] = plain
        size += plain.numel() * DTYPES[index[name]["dtype"]].itemsize
    for least in (0.0, 1 / EXPANSION):
        stored: dict[str, Tensor] = {}
        for name, plain in plains.items():
            stored |= _smaller(name, plain, least * DTYPES[index[name]["dtype"]].itemsize)
        if size <= _room(stored):
            break
    return stored, index


def _room(stored: Mapping[str, Tensor]) -> int:
    """The most that the tensors of a file may take in memory."""
    return max(EXPANSION * sum(tensor.nbytes for tensor in stored.values()), SMALL)


def _plain(name: str, tensor: Tensor) -> Tensor:
    if nn.parameter.is_lazy(tensor):
        raise CiglError(f"{name} has no shape yet: run the model once, then save it.")
    plain = tensor.detach()
    if type(plain) not in (Tensor, nn.Parameter, nn.Buffer) or plain.is_meta or plain.layout != torch.strided:
        raise CiglError(
            f"{name} is not a plain tensor ({type(plain).__name__}, {plain.layout}, {plain.device}): make it dense "
            "and whole before saving the model."
        )
    if plain.dtype not in NAMES:
        raise CiglError(f"{name} is {plain.dtype}, which safetensors files can't hold: convert it before saving.")
    return plain.cpu().contiguous()


def _halved(name: str, tensor: Tensor) -> Tensor:
    narrow = tensor.half()
    if bool((narrow.isinf() & tensor.isfinite()).any()):
        raise CiglError(f"{name} has values beyond 65504, the largest of fp16: save without half.")
    return narrow


def _smaller(name: str, tensor: Tensor, least: float) -> dict[str, Tensor]:
    """Sparse or dense; if sparse, with zeros among the values so that there are ``least`` bytes for each element."""
    size, width = tensor.numel(), tensor.element_size()
    if tensor.dtype in _FLOATS and size * width > _ENTRY:
        flat = tensor.view(-1)
        kept = flat != 0  # -0.0 is a zero, NaN is none
        if least:
            kept[:: max(1, int((width + 1) / least))] = True
        positions = kept.nonzero().view(-1)
        if positions.numel() * (width + 1) + _ENTRY < size * width:
            found = torch.from_numpy(gaps.encode(positions.numpy(), size))
            if positions.numel() * width + found.numel() + _ENTRY < size * width:
                return {f"{name}.gaps": found, f"{name}.values": flat[positions]}
    return {name: tensor}


def count_nonzero(tensor: Tensor) -> int:
    """Also of the types that torch can't count in, such as uint16 and float8."""
    return int((tensor.double() if tensor.dtype in _UNCOUNTED else tensor).count_nonzero())


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left is right or (
        left.shape == right.shape
        and left.dtype == right.dtype
        and torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (left, right)))
    )


def unpack(stored: Mapping[str, Tensor], index: Any) -> tuple[dict[str, Tensor], set[str]]:
    """The tensors by all of their names (tied ones are the same object), and which of them are parameters."""
    if not isinstance(index, dict):
        raise Damaged("the index of its tensors is missing")
    tensors: dict[str, Tensor] = {}
    parameters = set()
    used: set[str] = set()
    room = _room(stored)
    for name, entry in index.items():
        if not isinstance(entry, dict):
            raise Damaged(f"the index of {name} is not a JSON object")
        if "same" in entry:
            if str(entry["same"]) not in tensors:
                raise Damaged(f"{name} is tied to a tensor that does not come before it")
            tensors[name] = tensors[str(entry["same"])]
            continue
        dtype, shape = DTYPES.get(str(entry.get("dtype"))), entry.get("shape", [])
        if dtype is None or not is_shape(shape):
            raise Damaged(f"the index of {name} has no type or no shape")
        names = [name] if name in stored else [f"{name}.gaps", f"{name}.values"]
        if used.intersection(names) or not all(each in stored for each in names):
            raise Damaged(f"{name} is missing")
        used.update(names)
        parts = [stored[each] for each in names]
        room -= math.prod(shape) * dtype.itemsize
        if room < 0:
            raise Damaged(f"its tensors take more than {EXPANSION} times the file's size in memory")
        tensors[name] = _filled(name, parts, shape, dtype)
        if entry.get("kind") == "parameter":
            parameters.add(name)
    if left := stored.keys() - used:
        raise Damaged(f"{min(left)} is not in its index")
    return tensors, parameters


def _filled(name: str, parts: list[Tensor], shape: list[int], dtype: torch.dtype) -> Tensor:
    *places, values = parts
    if values.dtype != dtype and not (values.dtype == torch.float16 and dtype in (torch.float32, torch.float64)):
        raise Damaged(f"{name} is {values.dtype}, but should be {dtype}")
    values = values.to(dtype)
    if not places:
        if list(values.shape) != shape:
            raise Damaged(f"{name} has the shape {list(values.shape)}, but should have {shape}")
        return values
    if places[0].dtype != torch.uint8 or places[0].dim() != 1 or values.dim() != 1 or dtype not in _FLOATS:
        raise Damaged(f"{name} has gaps or values of a wrong type")
    try:
        positions = gaps.decode(places[0].numpy(), values.numel(), math.prod(shape))
    except CiglError as error:
        raise Damaged(f"{name}: {error}") from error
    full = torch.zeros(math.prod(shape), dtype=dtype)
    full[torch.from_numpy(positions)] = values
    return full.view(shape)
