"""What stays dense beside the selected parameters, and is said: nothing stays dense in silence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.text import percent
from cigl.sparsify.parameters.geometry import layout_of

_RECOMPUTED = {
    WeightNorm: ("weight_norm", "remove_weight_norm, or use torch.nn.utils.parametrizations.weight_norm"),
    SpectralNorm: ("spectral_norm", "remove_spectral_norm, or use torch.nn.utils.parametrizations.spectral_norm"),
    BasePruningMethod: ("pruning", "prune.remove"),
}


def refuse_recomputed(model: nn.Module) -> None:
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


def warn_of_parametrized(model: nn.Module, stacklevel: int) -> None:
    found = [path or type(module).__name__ for path, module in model.named_modules() if _has_computed_weight(module)]
    if found:
        others = f" (and of {len(found) - 1} more layers)" if len(found) > 1 else ""
        message = (
            f"the weight of {found[0]}{others} is computed from other parameters (weight_norm or another "
            "parametrization), so it stays dense."
        )
        warnings.warn(message, CiglWarning, stacklevel=stacklevel + 1)


def _has_computed_weight(module: nn.Module) -> bool:
    computed = {"weight"} - {*module._parameters.keys()}  # a list, in a scripted module
    if is_parametrized(module):
        assert isinstance(module.parametrizations, nn.ModuleDict)
        computed |= set(module.parametrizations)
    return any(layout_of(module, attribute, 2) for attribute in computed)


def warn_of_dense_majority(selected: int, dense: Mapping[str, nn.Parameter], stacklevel: int) -> None:
    """When less than half of a model's matrix weights are selected; those that a user has set to False don't count."""
    sizes = {name: p.numel() for name, p in dense.items() if not isinstance(p, nn.UninitializedParameter)}
    share = selected / (selected + sum(sizes.values()))
    if share >= 0.5:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    if ".parametrizations." in f".{largest}":
        way_in = "remove its parametrization"
    elif not dense[largest].requires_grad:
        way_in = "unfreeze it before cigl.attach"
    else:
        way_in = f"make it sparse too with layers={{{largest!r}: True}}"
    message = (
        f"only {percent(share, 1)} of the model's matrix weights are made sparse, and the largest that stays dense is "
        f"{largest} ({sizes[largest]:,} weights): {way_in}, or keep it dense without this warning with "
        f"layers={{{largest!r}: False}}."
    )
    warnings.warn(message, CiglWarning, stacklevel=stacklevel + 1)
