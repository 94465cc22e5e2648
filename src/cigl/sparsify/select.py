"""Which parameters are made sparse: by layer type, with per-layer overrides by glob."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from cigl.errors import CiglError, CiglWarning
from cigl.sparsify.random_numbers import LARGEST

LayerChoice = Mapping[str, "bool | float"]
_ATTENTION = {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"}


@dataclass(frozen=True)
class Owner:
    """A module that holds a parameter, under which attribute."""

    module: nn.Module
    attribute: str

    @property
    def is_embedding(self) -> bool:
        return isinstance(self.module, (nn.Embedding, nn.EmbeddingBag))

    @property
    def is_sparsifiable(self) -> bool:
        """Linear, convolution (transposed too) and attention: what the paper's networks are made of."""
        if isinstance(self.module, nn.MultiheadAttention):
            return self.attribute in _ATTENTION
        return isinstance(self.module, (nn.Linear, _ConvNd)) and self.attribute == "weight"


@dataclass(frozen=True)
class Selected:
    """A parameter to be made sparse. Tied weights are one parameter with several owners."""

    name: str
    parameter: nn.Parameter
    owners: tuple[Owner, ...]
    density: float | None  # set by the user for this layer alone

    @property
    def units(self) -> int:
        """How many output units there are."""
        module, shape = self.owners[0].module, self.parameter.shape
        return shape[1] * int(getattr(module, "groups", 1)) if getattr(module, "transposed", False) else shape[0]

    def grouped(self, mask: Tensor) -> Tensor:
        """The mask as (groups, outputs per group, inputs per group, kernel)."""
        module = self.owners[0].module
        groups = int(getattr(module, "groups", 1))
        view = mask.reshape(groups, mask.shape[0] // groups, mask.shape[1], -1)
        return view.transpose(1, 2) if getattr(module, "transposed", False) else view

    def fans(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The active fan-in of each output unit and the active fan-out of each input unit."""
        view = self.grouped(mask)
        return view.sum((2, 3)).flatten(), view.sum((1, 3)).flatten()

    def call_sites(self, model: nn.Module) -> Iterator[nn.Module]:
        """The modules whose call uses this parameter (attention uses its ``out_proj`` without calling it)."""
        for owner in self.owners:
            yield owner.module
            for module in model.modules():
                if isinstance(module, nn.MultiheadAttention) and module.out_proj is owner.module:
                    yield module


def select(model: nn.Module, layers: LayerChoice | None = None) -> list[Selected]:
    """The parameters to be made sparse, in the model's order; ``layers`` maps a glob to False or a density.

    A glob is matched against the parameter's name ("fc.weight") and the module's ("fc"); of several that
    match, the last one counts. Embeddings, weights tied to one, frozen weights and other parameters of two
    and more dimensions are taken only where a density is given for them.
    """
    if layers is not None and not isinstance(layers, Mapping):
        raise CiglError(f"layers is a {type(layers).__name__}: give a dictionary from glob to False or a density.")
    names, owners, aliases = _parameters(model)
    choices = _choices(names, owners, aliases, layers or {})
    chosen = []
    for name, parameter in names.items():
        holders = tuple(owners[name])
        choice = choices.get(name)
        usual = parameter.requires_grad and any(o.is_sparsifiable for o in holders)
        usual = usual and not any(o.is_embedding for o in holders)
        if choice is False or (choice is None and not usual):
            continue
        _check(name, parameter, holders)
        chosen.append(Selected(name, parameter, holders, choice))
    if not chosen:
        raise CiglError(
            "there is nothing to make sparse: no trainable linear, convolution or attention weight is left "
            f"in {type(model).__name__}; name a parameter with its density in layers={{...}}."
        )
    return chosen


def _parameters(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, list[Owner]], dict[str, set[str]]]:
    """Every parameter under its first name, all modules that hold it, and all names it goes by."""
    names: dict[str, nn.Parameter] = {}
    by_id: dict[int, str] = {}
    owners: dict[str, list[Owner]] = {}
    aliases: dict[str, set[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            full = f"{path}.{attribute}" if path else attribute
            name = by_id.setdefault(id(parameter), full)
            names.setdefault(name, parameter)
            owner = Owner(module, attribute)
            owners.setdefault(name, []).extend([] if owner in owners.get(name, []) else [owner])
            aliases.setdefault(name, set()).update({full, path})
        if isinstance(module, (nn.Linear, _ConvNd)) and "weight" not in module._parameters:
            message = (
                f"the weight of {path or type(module).__name__} is computed from other parameters (weight_norm or "
                "another parametrization), so it stays dense."
            )
            warnings.warn(message, CiglWarning, stacklevel=4)
    return names, owners, aliases


def _choices(
    names: Mapping[str, nn.Parameter],
    owners: Mapping[str, list[Owner]],
    aliases: Mapping[str, set[str]],
    layers: LayerChoice,
) -> dict[str, float | bool]:
    choices: dict[str, float | bool] = {}
    for glob, choice in layers.items():
        number = isinstance(choice, (int, float)) and not isinstance(choice, bool)
        if choice is not False and not (number and 0 < choice <= 1):
            raise CiglError(f"layers[{glob!r}] is {choice!r}: give False or a density above 0 and up to 1.")
        hits = [
            name
            for name, parameter in names.items()
            if any(fnmatchcase(alias, glob) for alias in aliases[name]) and (choice is False or parameter.dim() >= 2)
        ]
        if not hits:
            sparse = [name for name in names if any(o.is_sparsifiable for o in owners[name])]
            shown = ", ".join(sparse[:6]) + (", ..." if len(sparse) > 6 else "")
            raise CiglError(f"layers[{glob!r}] matches no weight; the model has {shown or 'none'}.")
        choices |= dict.fromkeys(hits, choice)
    return choices


def _check(name: str, parameter: nn.Parameter, owners: tuple[Owner, ...]) -> None:
    way_out = f"leave it out with layers={{{name!r}: False}}"
    if isinstance(parameter, nn.UninitializedParameter):
        raise CiglError(f"{name} has no shape yet: run one batch through the model before attaching.")
    if type(parameter.data) is not Tensor:
        raise CiglError(
            f"{name} holds a {type(parameter.data).__name__}, not a plain tensor (FSDP and other sharding are "
            "not supported): attach to the unsharded model, or use DistributedDataParallel."
        )
    if not parameter.is_floating_point() or parameter.dim() < 2:
        raise CiglError(f"{name} ({parameter.dtype}, {parameter.dim()} dimensions) can't be sparse: {way_out}.")
    dense = torch.empty_like(parameter, device="meta", memory_format=torch.preserve_format)
    if parameter.numel() == 0 or parameter.numel() >= LARGEST or dense.stride() != parameter.stride():
        raise CiglError(f"{name} is empty, too large or overlaps itself in memory: {way_out}.")
    if any(getattr(owner.module, "sparse", False) for owner in owners):
        raise CiglError(f"{name} gets sparse gradients: build its embedding with sparse=False, or {way_out}.")
