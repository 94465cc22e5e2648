"""Nested states of tensors and plain values in one safetensors file, checksummed and written atomically.

Nothing is pickled: the structure is JSON in the file's metadata, the tensors are the file's own, named by where they
are: the file of a plain state_dict is what safetensors itself would write. Keys keep their type (optimizers number
their parameters), and lists and tuples stay what they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.extras import from_extra
from cigl.common.files import write
from cigl.common.text import one_line

_OWN = ("cigl", "structure", "sha256")  # names in the metadata that are not entries


def save(path: Path, state: Any, entries: Mapping[str, Any] | None = None) -> None:
    """``entries`` are plain data, which go into the file's metadata as JSON, each under its name."""
    with from_extra("cli", "checkpoints"):
        from safetensors.torch import save as to_bytes

    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(state, tensors))
    texts = {name: json.dumps(value) for name, value in (entries or {}).items()}
    metadata = {"cigl": "1", "structure": structure, "sha256": _digest(structure, tensors, texts)} | texts
    write(path, *_in_order(to_bytes(tensors, metadata)))


def _in_order(content: bytes) -> tuple[bytes, memoryview]:
    """safetensors writes its metadata in a random order: sorted, the same state is always the same file."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # as the format wants the tensors aligned
    return len(text).to_bytes(8, "little") + text, memoryview(content)[end:]


def load(path: Path) -> Any:
    """The state, or a CiglError if the file is damaged in any way."""
    return load_with_entries(path)[0]


def load_with_entries(path: Path) -> tuple[Any, dict[str, Any]]:
    """The state, and what else was saved with it."""
    with from_extra("cli", "checkpoints"):
        from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        structure = metadata["structure"]
        texts = {name: text for name, text in metadata.items() if name not in _OWN}
        if metadata["sha256"] != _digest(structure, tensors, texts):
            raise CiglError(f"{path} is damaged: its checksum does not fit its content.")
        return _decode(json.loads(structure), tensors), {name: json.loads(text) for name, text in texts.items()}
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, CiglError):
            raise
        raise CiglError(f"{path} is damaged or not a checkpoint ({one_line(error)}).") from error


def _digest(structure: str, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name in sorted(texts):
        digest.update(f"\n{name} {texts[name]}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], *path: Any) -> Any:
    if isinstance(value, Tensor):
        name = ".".join(map(str, path))
        while name in tensors:  # a key with a dot in it may spell the path to another
            name += "_"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[_encode(k, tensors), _encode(v, tensors, *path, k)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        parts = [_encode(part, tensors, *path, place) for place, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CiglError(f"a {type(value).__name__} can't be saved: states hold tensors and plain values.")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_decode(part, tensors) for part in value["tuple"])
    return {_decode(k, tensors): _decode(v, tensors) for k, v in value["items"]}
