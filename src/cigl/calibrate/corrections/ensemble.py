"""Predictions averaged over members: deep ensembles, snapshots, random masks, posterior draws, MC dropout.

Whoever makes the members decides which of these it is; the average is the same (for classes: of probabilities,
not of logits). ``cigl.evaluate(None, loader, members=...)`` scores it:

- deep ensemble: ``members=[model_a, model_b, ...]``
- CigL without WMA (the paper's ablation): ``members=sparse.members()`` of the method ``cigl-no-wma``
- Monte-Carlo prediction over random masks: ``members=sparse.members(20)``
- the moment-matched posterior: ``members=sparse.sample_posterior(20, train_loader)``
- dropout layers left on: ``cigl.evaluate(model, loader, members=20)``

Members whose weights are not those their batch-norm statistics were made with go through
``cigl.reestimate_batch_norm(member, train_loader)`` first; ``sample_posterior`` does it itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from cigl.common.errors import CiglError


def mean_prediction(logits: Iterable[Tensor]) -> Tensor:
    """The log of the mean of the members' probabilities (logits of the averaged prediction).

    In log space and in float32 at least, so that a member that is sure does not make the others' NLL infinite.

    >>> import torch
    >>> from cigl.calibrate import mean_prediction
    >>> a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]])
    >>> mean_prediction([a, b]).exp()
    tensor([[0.2500, 0.7500]])
    """
    members = [one.to(torch.promote_types(one.dtype, torch.float32)).log_softmax(-1) for one in logits]
    if not members:
        raise CiglError("there are no members to average: pass at least one model.")
    stacked = torch.stack(members)
    return torch.logsumexp(stacked, 0) - torch.log(torch.tensor(float(len(members))))


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, or an object or mapping that has ``logits``."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise CiglError(
            f"the model returned a {type(output).__name__} without logits: wrap it in a module that "
            "returns a tensor of shape (samples, classes)."
        )
    return found


class Ensemble(nn.Module):
    """A model that returns the (log of the) averaged prediction of its members.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import Ensemble
    >>> model = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)])
    >>> bool(torch.allclose(model(torch.randn(2, 4)).exp().sum(1), torch.ones(2)))
    True
    """

    def __init__(self, members: Iterable[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise CiglError("there are no members to average: pass at least one model.")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return mean_prediction(logits_of(member(*args, **kwargs)) for member in self.members)


class MonteCarlo(nn.Module):
    """A model run ``n`` times with its dropout layers on, also in eval mode (Gal & Ghahramani 2016); the rest,
    batch norm above all, is as in evaluation.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import MonteCarlo
    >>> model = MonteCarlo(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), 10).eval()
    >>> model(torch.randn(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, model: nn.Module, n: int):
        super().__init__()
        if not isinstance(n, int) or n < 1:
            raise CiglError(f"members is {n!r}: say how many times to run the model, at least once.")
        if not any(_drops(module) for module in model.modules()):
            raise CiglError(
                "the model has no dropout layer, so every run would be the same: pass a list of models as "
                "members, for example sparse.members(n) for random masks over the weights."
            )
        self.model = model
        self.n = n

    def train(self, mode: bool = True) -> MonteCarlo:
        super().train(mode)
        for module in self.model.modules():
            if _drops(module):
                module.training = True
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return mean_prediction(logits_of(self.model(*args, **kwargs)) for _ in range(self.n))


def _drops(module: nn.Module) -> bool:
    return isinstance(module, _DropoutNd) and module.p > 0
