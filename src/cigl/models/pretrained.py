"""Weights that were trained before, read from a file into a network whose last layer may have other classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.common.extras import from_extra
from cigl.common.text import listed, one_line
from cigl.models.resnets import torchvision_names

_INSIDE = ("state_dict", "model", "model_state_dict")  # names under which training scripts save a state dict
_AROUND = ("module.", "_orig_mod.", "model.")  # what wrappers put before each name


def load_pretrained(model: nn.Module, file: Path) -> None:
    """Copy the file's weights; only the last layer may be of another shape, and then stays as it is.

    Names are the network's own, or for our ResNets those of torchvision and timm.
    """
    found, own = _read(file), model.state_dict()
    for prefix in _AROUND:
        if found and all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): value for name, value in found.items()}
    names = torchvision_names(model)
    if not found.keys() & own.keys():
        parts = {name: name.rpartition(".") for name in found}
        found = {f"{names.get(place, place)}.{end}": found[name] for name, (place, _, end) in parts.items()}
    last = next((name for name, each in reversed(list(model.named_modules())) if isinstance(each, nn.Linear)), None)
    fits = {name: value for name, value in found.items() if name in own and value.shape == own[name].shape}
    counters = {name for name in own if name.endswith("num_batches_tracked")}  # old files have none
    lost = [name for name in own if name not in fits and name.rpartition(".")[0] != last and name not in counters]
    if lost:
        shapes = [f"{name} is {tuple(found[name].shape)} there" for name in lost if name in found]
        raise CiglError(
            f"the weights in {file} are of another network: "
            + (f"{shapes[0]} and {tuple(own[lost[0]].shape)} here" if shapes else f"{listed(lost)} are missing")
            + ": give the model that they were trained with"
            + (", and images of more than 64 pixels (image_size)." if names else "."),
            arguments=("image_size",),
        )
    model.load_state_dict(own | fits)


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise CiglError(f"there is no file {file}: give weights as a .safetensors file or a state dict of torch.save.")
    with from_extra("cli", "weights"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        content: Any = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise CiglError(f"{file} can't be read as weights: {one_line(error)}.") from error
    except Exception as error:  # pickle's errors for what is not plain tensors
        raise CiglError(
            f"{file} holds more than tensors, which is not read because it could run code: save its state dict, "
            "torch.save(model.state_dict(), file)."
        ) from error
    for name in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(each, Tensor) for each in content.values())
    ):
        raise CiglError(f"{file} holds no state dict: save one, torch.save(model.state_dict(), file).")
    return dict(content)
