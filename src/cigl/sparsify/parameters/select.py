"""Which parameters are made sparse, by layer type with overrides by glob; and what stays dense beside them, which is
said: nothing stays dense in silence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.text import percent
from cigl.sparsify.parameters.geometry import UnitLayout, is_bias, layout_of, layout_on_request
from cigl.sparsify.tensors.random_numbers import LARGEST
from cigl.sparsify.tensors.shards import local, refusal

LayerChoice = Mapping[str, "bool | float"]

_RECOMPUTED = {
    WeightNorm: ("weight_norm", "remove_weight_norm, or use torch.nn.utils.parametrizations.weight_norm"),
    SpectralNorm: ("spectral_norm", "remove_spectral_norm, or use torch.nn.utils.parametrizations.spectral_norm"),
    BasePruningMethod: ("pruning", "prune.remove"),
}


@dataclass(frozen=True)
class Owner:
    """A module that holds a parameter, under which attribute."""

    module: nn.Module
    attribute: str

    @property
    def is_embedding(self) -> bool:
        return isinstance(self.module, (nn.Embedding, nn.EmbeddingBag))

    @property
    def is_weight(self) -> bool:
        """Biases and the scales of normalisation can have several dimensions too."""
        return not is_bias(self.attribute) and not isinstance(self.module, (nn.LayerNorm, nn.RMSNorm))


@dataclass(frozen=True)
class Candidate:
    """A parameter with all modules that hold it and all names it goes by: tied weights are one."""

    name: str
    parameter: nn.Parameter
    owners: tuple[Owner, ...]
    aliases: frozenset[str]  # of the parameter and of its modules

    @property
    def is_matrix(self) -> bool:
        """Whether it is a weight of two dimensions or more, which could be sparse."""
        return _dimensions(self.parameter) >= 2 and all(owner.is_weight for owner in self.owners)

    @property
    def is_usual(self) -> bool:
        """Whether it is taken without being asked for, once it is trained."""
        of_known_layer = any(layout_of(o.module, o.attribute, _dimensions(self.parameter)) for o in self.owners)
        return of_known_layer and not any(owner.is_embedding for owner in self.owners)

    def matches(self, glob: str) -> bool:
        return any(fnmatchcase(alias, glob) for alias in self.aliases)


@dataclass(frozen=True)
class Selected(Candidate):
    """A parameter to be made sparse."""

    density: float | None  # set by the user for this layer alone

    @cached_property
    def layout(self) -> UnitLayout:
        dimensions = self.parameter.dim()
        known = (layout_of(owner.module, owner.attribute, dimensions) for owner in self.owners)
        return next((layout for layout in known if layout is not None), layout_on_request(dimensions))

    @property
    def units(self) -> int:
        """How many output units there are."""
        return self.layout.units(tuple(self.parameter.shape))

    def call_sites(self, model: nn.Module) -> Iterator[nn.Module]:
        """The modules whose call uses this parameter (attention uses its ``out_proj`` without calling it)."""
        for owner in self.owners:
            yield owner.module
            for module in model.modules():
                if isinstance(module, nn.MultiheadAttention) and module.out_proj is owner.module:
                    yield module


def select(model: nn.Module, layers: LayerChoice | None = None) -> list[Selected]:
    """The parameters to be made sparse, in the model's order; ``layers`` maps a glob to a bool or a density.

    Weights of linear, convolution, attention, recurrent and bilinear layers and of Transformers' Conv1D and experts
    are taken. Embeddings, weights tied to one, frozen weights and other parameters of two and more dimensions are
    taken only where a glob says True (with a share of the distribution) or a density. A glob is matched against the
    parameter's name ("fc.weight") and the module's ("fc"); of several that match, the last one counts.
    """
    if layers is not None and not isinstance(layers, Mapping):
        raise CiglError(
            f"layers is a {type(layers).__name__}: give a dictionary from glob to True, False or a density."
        )
    _refuse_recomputed(model)
    candidates = list(find_candidates(model))
    choices = _choices(candidates, layers or {})
    chosen = [c for c in candidates if choices.get(c.name, c.is_usual and c.parameter.requires_grad) is not False]
    for candidate in chosen:
        _check(candidate)
    if not chosen:
        raise CiglError(
            "there is nothing to make sparse: no trainable weight of a known layer (linear, convolution, attention, "
            f"recurrent) is left in {type(model).__name__}; name a parameter with layers={{name: True}}."
        )
    _warn_of_parametrized(model)
    densities = {name: choice for name, choice in choices.items() if not isinstance(choice, bool)}
    return [Selected(**vars(c), density=densities.get(c.name)) for c in chosen]


def warn_of_dense_majority(model: nn.Module, selected: Sequence[Selected], layers: LayerChoice) -> None:
    """When less than half of the model's matrix weights are selected; those that are meant to be dense don't count."""
    taken = {s.name: s.parameter.numel() for s in selected}
    others = [c for c in _open_to_choice(model, layers) if c.is_matrix and c.name not in taken]
    dense = {c: c.parameter.numel() for c in others if not isinstance(c.parameter, nn.UninitializedParameter)}
    share = sum(taken.values()) / (sum(taken.values()) + sum(dense.values()))
    if share >= 0.5:
        return
    largest = max(dense, key=lambda candidate: dense[candidate])
    if ".parametrizations." in f".{largest.name}":
        way_in = "remove its parametrization"
    elif not largest.parameter.requires_grad:
        way_in = "unfreeze it before cigl.attach"
    else:
        way_in = f"make it sparse too with layers={{{largest.name!r}: True}}"
    message = (
        f"only {percent(share, 1)} of the model's matrix weights are made sparse, and the largest that stays dense is "
        f"{largest.name} ({dense[largest]:,} weights): {way_in}, or keep it dense without this warning with "
        f"layers={{{largest.name!r}: False}}."
    )
    warnings.warn(message, CiglWarning, stacklevel=3)


def usual_parameters(model: nn.Module, layers: LayerChoice) -> dict[str, nn.Parameter]:
    """Those that would be selected if the model were attached as it is now."""
    usual = (c for c in _open_to_choice(model, layers) if c.is_usual and c.parameter.requires_grad)
    return {c.name: c.parameter for c in usual}


def _open_to_choice(model: nn.Module, layers: LayerChoice) -> list[Candidate]:
    """All but those that ``layers`` sets to False."""
    candidates = list(find_candidates(model))
    dense = {c.name for glob, choice in layers.items() for c in candidates if choice is False and c.matches(glob)}
    return [c for c in candidates if c.name not in dense]


def find_candidates(model: nn.Module) -> Iterator[Candidate]:
    """Every parameter under its first name, in the model's order."""
    modules = dict(model.named_modules(remove_duplicate=False))
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, own in names.items():
        places = [name.rpartition(".") for name in own]
        owners = dict.fromkeys(Owner(modules[path], attribute) for path, _, attribute in places)
        aliases = frozenset([*own, *(path for path, _, _ in places)])
        yield Candidate(own[0], parameter, tuple(owners), aliases)


def _choices(candidates: list[Candidate], layers: LayerChoice) -> dict[str, bool | float]:
    choices: dict[str, bool | float] = {}
    for glob, choice in layers.items():
        if not isinstance(choice, bool) and not (isinstance(choice, (int, float)) and 0 < choice <= 1):
            raise CiglError(f"layers[{glob!r}] is {choice!r}: give True, False or a density above 0 and up to 1.")
        hits = [c.name for c in candidates if c.matches(glob) and (choice is False or c.is_matrix)]
        if not hits:
            usual = [c.name for c in candidates if c.is_usual]
            shown = ", ".join(usual[:6]) + (", ..." if len(usual) > 6 else "")
            raise CiglError(f"layers[{glob!r}] matches no weight; the model has {shown or 'none'}.")
        choices |= dict.fromkeys(hits, choice)
    return choices


def _check(candidate: Candidate) -> None:
    name, parameter = candidate.name, candidate.parameter
    way_out = f"leave it out with layers={{{name!r}: False}}"
    if isinstance(parameter, nn.UninitializedParameter):
        raise CiglError(f"{name} has no shape yet: run one batch through the model before attaching.")
    if any(isinstance(owner.module, ParametrizationList) for owner in candidate.owners):
        raise CiglError(
            f"{name} belongs to a parametrization, and zeros in it need not be zeros of the weight: remove the "
            f"parametrization, or {way_out}."
        )
    if reason := refusal(parameter, [owner.module for owner in candidate.owners]):
        raise CiglError(f"{name} {reason}; {way_out}.")
    held = local(parameter)
    if type(held) is not Tensor:
        raise CiglError(
            f"{name} holds a {type(held).__name__}, not a plain tensor: use plain tensors, DistributedDataParallel or "
            f"FSDP2 (torch.distributed.fsdp.fully_shard), or {way_out}."
        )
    if not parameter.is_floating_point() or parameter.dim() < 2:
        raise CiglError(f"{name} ({parameter.dtype}, {parameter.dim()} dimensions) can't be sparse: {way_out}.")
    if parameter.numel() >= LARGEST:
        raise CiglError(f"{name} has {parameter.numel():,} elements, and positions have 32 bits: {way_out}.")
    dense = torch.empty_like(held, device="meta", memory_format=torch.preserve_format)
    if parameter.numel() == 0 or dense.stride() != held.stride():
        raise CiglError(f"{name} is empty or overlaps itself in memory: {way_out}.")
    if any(getattr(owner.module, "sparse", False) for owner in candidate.owners):
        raise CiglError(f"{name} gets sparse gradients: build its embedding with sparse=False, or {way_out}.")


def _dimensions(parameter: nn.Parameter) -> int:
    """Lazy layers don't know yet: their weights have two or more."""
    return 2 if isinstance(parameter, nn.UninitializedParameter) else parameter.dim()


def _refuse_recomputed(model: nn.Module) -> None:
    """Old-style hooks put a computed weight into the module, which torch can't copy: ``finalize`` would fail."""
    for path, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and is_parametrized(module):
            raise CiglError(
                f"{path or type(module).__name__} is a recurrent layer with a parametrization, and keeps a computed "
                "weight that torch can't copy: remove the parametrization before attaching."
            )
        for hook in module._forward_pre_hooks.values():
            for kind, (name, way_out) in _RECOMPUTED.items():
                if isinstance(hook, kind):
                    raise CiglError(
                        f"{path or type(module).__name__} has torch's old-style {name}, whose weight is recomputed "
                        f"before each forward and can be neither masked nor copied: call torch.nn.utils.{way_out}."
                    )


def _warn_of_parametrized(model: nn.Module) -> None:
    found = [path or type(module).__name__ for path, module in model.named_modules() if _has_computed_weight(module)]
    if found:
        others = f" (and of {len(found) - 1} more layers)" if len(found) > 1 else ""
        message = (
            f"the weight of {found[0]}{others} is computed from other parameters (weight_norm or another "
            "parametrization), so it stays dense."
        )
        warnings.warn(message, CiglWarning, stacklevel=4)


def _has_computed_weight(module: nn.Module) -> bool:
    computed = {"weight"} - {*module._parameters.keys()}  # a list, in a scripted module
    if is_parametrized(module):
        assert isinstance(module.parametrizations, nn.ModuleDict)
        computed |= set(module.parametrizations)
    return any(layout_of(module, attribute, 2) for attribute in computed)
