"""The container: a safetensors file with a description and a checksum over all of it.

The format is small, so it is written and read here with torch alone: every size is checked before it is used,
and loading a model needs no further package. Any tool that reads safetensors can open it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.files import whole_file

FORMAT = "cigl"
VERSION = "1"
LONGEST_HEADER = 2**25
_STATE = "is a file of torch.save: load it into its model, and write that with cigl.save(model, path)."
_OTHERS = {
    ".onnx": "is for other engines, such as ONNX Runtime: take the run that it was exported from, or a .cigl file, "
    "which `cigl export RUN model.cigl` writes.",
    ".pt": _STATE,
    ".pth": _STATE,
}
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "C64": torch.complex64, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Damaged(CiglError):
    """What is wrong inside a file; ``read`` puts the file's name before it."""


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Contiguous CPU tensors by name, and a description of plain data, whole or not at all."""
    try:
        text = json.dumps(description, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CiglError(f"a model's description must be plain data that JSON can hold: {error}.") from error
    metadata = {"format": FORMAT, "version": VERSION, "description": text, "sha256": _digest(text, tensors)}
    header: dict[str, Any] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > LONGEST_HEADER:
        raise CiglError(f"the model's description takes {len(head)} bytes, more than a file may have: shorten `about`.")
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for name in order:
                file.write(_bytes(tensors[name]))
    except OSError as error:
        raise CiglError(f"{path} can't be written ({error.strerror}); what was there before is intact.") from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description, as they were written, or a CiglError."""
    if not Path(path).is_file():
        raise CiglError(f"{path} is not a file: give the path of a model that cigl.save wrote.")
    if other := _OTHERS.get(Path(path).suffix.lower()):
        raise CiglError(f"{path} {other}")
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(LONGEST_HEADER, size - 8):
                raise Damaged("it is truncated or not a safetensors file")
            header = parse(file.read(length).decode())
            metadata: Any = header.pop("__metadata__", None) if isinstance(header, dict) else None
            text = _described(metadata)
            tensors = {}
            for name, dtype, shape in _layout(header, size - 8 - length):
                tensors[name] = torch.empty(shape, dtype=dtype)
                if file.readinto(_bytes(tensors[name])) != tensors[name].numel() * dtype.itemsize:
                    raise Damaged("it is truncated")
        if metadata["sha256"] != _digest(text, tensors):
            raise Damaged("its checksum does not match its content")
        for name, tensor in tensors.items():
            if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
                raise Damaged(f"{name} has Boolean values other than 0 and 1")
        description = parse(text)
        if not isinstance(description, dict):
            raise Damaged("its description is not a JSON object")
        return tensors, description
    except Damaged as error:
        raise CiglError(f"{path} can't be loaded: {' '.join(str(error).split())}. Copy or save it again.") from error
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, RuntimeError) as error:
        raise CiglError(f"{path} can't be loaded: it is damaged or not a safetensors file.") from error
    except OSError as error:
        raise CiglError(f"{path} can't be read: {error.strerror}.") from error


def parse(text: str) -> Any:
    """JSON in which every name occurs once, and no number is NaN or infinite."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Damaged("a name occurs in it twice")
        return found

    def number(word: str) -> Any:
        raise Damaged(f"{word} is in the place of a number")

    return json.loads(text, object_pairs_hook=once, parse_constant=number)


def _described(metadata: Any) -> str:
    """The description's text, if this is a file of ours."""
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise Damaged("it is a safetensors file, but not one that cigl.save wrote")
    if metadata.get("version") != VERSION:
        raise Damaged(f"it has version {metadata.get('version')!r}, and this cigl reads {VERSION!r}; upgrade cigl")
    if not all(isinstance(metadata.get(name), str) for name in ("description", "sha256")):
        raise Damaged("its description is missing")
    return str(metadata["description"])


def _layout(header: dict[str, Any], size: int) -> list[tuple[str, torch.dtype, list[int]]]:
    """What the data holds, in its order: tensor after tensor, from the first byte to the last."""
    found = []
    for name, entry in header.items():
        dtype, shape = DTYPES.get(entry["dtype"]), entry["shape"]
        begin, end = entry["data_offsets"]
        if dtype is None or not is_shape(shape) or type(begin) is not int or type(end) is not int:
            raise Damaged(f"the entry of {name} is malformed")
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise Damaged(f"{name} has {end - begin} bytes, which do not match its shape")
        found.append((begin, end, name, dtype, shape))
    found.sort(key=lambda entry: entry[:2])
    place = 0
    for begin, end, name, _, _ in found:
        if begin != place:
            raise Damaged(f"{name} does not begin where the tensor before it ends")
        place = end
    if place != size:
        raise Damaged(f"its tensors take {place} bytes, but the file has {size}")
    return [(name, dtype, shape) for _, _, name, dtype, shape in found]


def is_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 32
        and all(type(size) is int and 0 <= size < 2**48 for size in value)
        and math.prod(max(size, 1) for size in value) < 2**48
    )


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the version, the description, and each tensor's name, type, shape and bytes, in order of names."""
    digest = hashlib.sha256(f"{VERSION}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {NAMES[tensor.dtype]} {list(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()
