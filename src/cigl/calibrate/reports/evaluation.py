"""From a model and a loader to predictions, and from those to a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.calibrate.corrections.ensemble import Ensemble, MonteCarlo, logits_of
from cigl.calibrate.measures.bins import check_bins
from cigl.calibrate.measures.samples import as_tensor
from cigl.calibrate.reports.classification import RESAMPLES, Report, report
from cigl.common.batches import default_forward
from cigl.common.errors import CiglError

Members = int | Iterable[nn.Module] | None


def evaluate(
    model: nn.Module | None,
    loader: Iterable[Any],
    *,
    bins: int = 15,
    device: torch.device | str | None = None,
    members: Members = None,
    resamples: int = RESAMPLES,
) -> Report:
    """The calibration report on a model that returns logits.

    Args:
        model: The model. Afterwards it is on the device and in the mode it was before.
        loader: Batches (inputs, labels), or mappings with ``labels``, of which the rest goes to the model by name.
        bins: How many bins the calibration errors have.
        device: Where to run; by default where the model is.
        members: Average predictions: a list of models in place of ``model`` (which may then be None), or how many
            times to run ``model`` with its dropout layers on.
        resamples: How many resamples the bootstrap draws.

    Returns:
        A ``Report``: print it, or read ``report.accuracy``, ``report.ece.low`` and so on.

    >>> import torch
    >>> from torch import nn
    >>> from cigl import evaluate
    >>> loader = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(5)]
    >>> evaluate(nn.Linear(4, 3), loader).n
    40
    >>> evaluate(None, loader, members=[nn.Linear(4, 3), nn.Linear(4, 3)]).n
    40
    """
    bins = check_bins(bins)
    logits, labels = predict(with_members(model, members), loader, device)
    return report(logits=logits, labels=labels, bins=bins, resamples=resamples)


def with_members(model: nn.Module | None, members: Members) -> nn.Module:
    """The model whose predictions are meant."""
    if isinstance(members, bool) or (isinstance(members, nn.Module) and not isinstance(members, nn.ModuleList)):
        raise CiglError(
            f"members is {type(members).__name__}: pass a list of models, or how many times to run one "
            "model with its dropout layers on."
        )
    if isinstance(members, (int, np.integer)):
        if model is None:
            raise CiglError(f"members={members} runs a model that many times: pass the model.")
        return MonteCarlo(model, int(members))
    if members is not None:
        return Ensemble(members)
    if not isinstance(model, nn.Module):
        raise CiglError(
            f"a model (nn.Module) is needed, not {type(model).__name__}; predictions that are already "
            "there go to cigl.calibrate.report(logits=..., labels=...)."
        )
    return model


@torch.no_grad()
def predict(model: nn.Module, loader: Iterable[Any], device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """The logits and labels of a whole loader, on the CPU.

    Args:
        model: Returns logits, or an object or mapping that has ``logits``.
        loader: As for ``cigl.evaluate``.
        device: Where to run; by default where the model is.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import predict
    >>> logits, labels = predict(nn.Linear(4, 3), [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))])
    >>> logits.shape, labels.shape
    (torch.Size([8, 3]), torch.Size([8]))
    """
    logits, labels = [], []
    with evaluating(model, device):
        for batch in loader:
            labels.append(labels_of(batch).cpu())
            logits.append(as_tensor(logits_of(forward(model, batch)), "logits").cpu())
            if logits[-1].shape[:1] != labels[-1].shape[:1]:
                raise CiglError(
                    f"a batch has {tuple(logits[-1].shape)} logits and {tuple(labels[-1].shape)} labels: "
                    "there must be one row per label."
                )
    if not logits:
        raise CiglError(
            "the loader yielded no batch: there is nothing to evaluate on (a generator that has been used "
            "up yields nothing)."
        )
    return torch.cat(logits), torch.cat(labels)


def labels_of(batch: Any) -> Tensor:
    found = None
    if isinstance(batch, Mapping):
        found = batch.get("labels")
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        found = batch[1]
    if found is None:
        raise CiglError("a batch has no labels: the loader must yield (inputs, labels) or mappings with 'labels'.")
    return as_tensor(found, "labels")


def forward(model: nn.Module, batch: Any) -> Any:
    """The model on a batch; a mapping goes to it by name, which not every model takes."""
    try:
        return default_forward(model, batch)
    except TypeError as error:
        if isinstance(batch, Mapping) and "keyword argument" in str(error):
            raise CiglError(
                f"the model does not take a mapping's entries by name ({error}): let the loader yield "
                "(inputs, labels), or wrap the model."
            ) from error
        raise


@contextmanager
def evaluating(model: nn.Module, device: torch.device | str | None) -> Iterator[None]:
    """Eval mode, on ``device``, with a seeded generator for dropout; then everything as before."""
    modes = {module: module.training for module in model.modules()}
    tensors = [*model.parameters(), *model.buffers()]
    home = tensors[0].device if tensors else torch.device("cpu")
    if device is not None and len({tensor.device for tensor in tensors}) > 1:
        raise CiglError("the model is spread over several devices: evaluate it where it is, without device=.")
    here = torch.device(device) if device is not None else home
    forked = [here] if here.type in ("cuda", "xpu") else []  # the kinds whose generators torch can save
    with torch.random.fork_rng(forked, device_type=here.type if forked else "cuda"):
        torch.default_generator.manual_seed(0)
        if forked:
            torch.get_device_module(here).manual_seed(0)
        try:
            if device is not None:
                model.to(here)
            model.eval()
            yield
        finally:
            if device is not None:
                model.to(home)
            for module, mode in modes.items():
                module.training = mode
