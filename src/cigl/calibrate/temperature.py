"""Temperature scaling (Guo et al. 2017), one of the paper's baselines (section 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cigl.calibrate.ensemble import logits_of
from cigl.calibrate.report import Report, report
from cigl.calibrate.samples import checked_input
from cigl.errors import CiglError

# Limits, as multiples of the logits' own scale: a temperature beyond them is as good as 0 or infinity.
_COLDEST, _HOTTEST = 1e-3, 1e3


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature. ``clamped`` says that no finite one is best, and ``value`` is the limit."""

    value: float
    clamped: bool
    nll_before: float
    nll_after: float


def fit_temperature(*, logits: Any, labels: Any) -> Temperature:
    """The T that minimises the NLL of softmax(logits / T) on held-out data.

    NLL is convex in 1/T, so its slope mean(E_p[z] - z_label) has one zero; it is found in log(1/T), by Newton's
    steps inside a shrinking bracket, relative to the logits' scale. Where every label is predicted right, colder
    is always better; where the labels are worse than chance, hotter is: then the limit is returned, flagged.

    >>> logits = torch.tensor([[4.0, 0.0]] * 4)
    >>> t = fit_temperature(logits=logits, labels=torch.tensor([0, 0, 0, 1]))  # 3 of 4: logit log(3)
    >>> round(t.value, 4), t.clamped
    (3.641, False)
    """
    scores, labels, _ = checked_input(logits, None, labels)
    z = scores.double().cpu()
    labels = labels.cpu()
    if not bool(torch.isfinite(z).all()):
        raise CiglError(
            "logits have NaN or infinity: no temperature can be fitted; leave such samples and classes out."
        )
    z = z - z.mean(1, keepdim=True)
    scale = float(z.square().mean().sqrt())
    before = _nll(z, labels, 1.0)
    if scale == 0:  # all classes alike: temperature changes nothing
        return Temperature(1.0, True, before, before)
    z = z / scale
    low, high = -math.log(_HOTTEST), -math.log(_COLDEST)  # of u = log(1/T), at scale 1
    if _slope(z, labels, low)[0] >= 0:
        u, clamped = low, True
    elif _slope(z, labels, high)[0] <= 0:
        u, clamped = high, True
    else:
        u, clamped = _zero(z, labels, low, high), False
    value = scale * math.exp(-u)
    return Temperature(value, clamped, before, _nll(z, labels, value / scale))


def _zero(z: Tensor, labels: Tensor, low: float, high: float) -> float:
    u = 0.0
    for _ in range(200):
        slope, curvature = _slope(z, labels, u)
        low, high = (u, high) if slope < 0 else (low, u)
        step = u - slope / curvature if curvature > 0 else low
        new = step if low < step < high else (low + high) / 2
        if abs(new - u) < 1e-9:
            return new
        u = new
    return u


def _slope(z: Tensor, labels: Tensor, u: float) -> tuple[float, float]:
    """Of the NLL, and the slope's own derivative by u = log(1/T)."""
    beta = math.exp(u)
    p = (z * beta).softmax(1)
    mean = (p * z).sum(1)
    variance = (p * z.square()).sum(1) - mean.square()
    own = z.gather(1, labels[:, None]).squeeze(1)
    return float((mean - own).mean()), beta * float(variance.mean())


def _nll(z: Tensor, labels: Tensor, temperature: float) -> float:
    return float(nn.functional.cross_entropy(z / temperature, labels))


class TemperatureScaled(nn.Module):
    """A model whose logits are divided by a temperature; saved and moved with it.

    >>> model = TemperatureScaled(nn.Linear(4, 3), 2.0)
    >>> x = torch.randn(2, 4)
    >>> bool(torch.equal(model(x), model.model(x) / 2))
    True
    """

    temperature: Tensor

    def __init__(self, model: nn.Module, temperature: float | Temperature):
        super().__init__()
        value = temperature.value if isinstance(temperature, Temperature) else float(temperature)
        if not 0 < value < float("inf"):
            raise CiglError(f"temperature is {value}: it must be positive and finite.")
        self.model = model
        self.register_buffer("temperature", torch.tensor(value))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        logits = logits_of(self.model(*args, **kwargs))
        return logits / self.temperature.to(logits.dtype)


@dataclass(frozen=True)
class HeldOut:
    """Temperature scaling fitted on one part of a data set; both reports are on the other part alone."""

    temperature: Temperature
    fitted_on: int
    before: Report
    after: Report

    def __str__(self) -> str:
        note = " (clamped: no finite temperature is best)" if self.temperature.clamped else ""
        return (f"temperature {self.temperature.value:.4f}{note}, fitted on {self.fitted_on} samples, scored on "
                f"{self.after.n} others\n\nbefore: {self.before}\n\nafter: {self.after}")  # fmt: skip


def split_and_scale(*, logits: Any, labels: Any, share: float = 0.2, seed: int = 0, bins: int = 15) -> HeldOut:
    """Fit on a random ``share`` of the samples and score on the rest: never on what was fitted on.

    A temperature scored on its own samples looks better than it is. Where there is a validation set, use
    ``fit_temperature`` on that and score the whole test set instead.

    >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> held_out = split_and_scale(logits=z, labels=z.argmax(1))
    >>> held_out.fitted_on, held_out.after.n
    (40, 160)
    """
    scores, labels, _ = checked_input(logits, None, labels)
    n = scores.shape[0]
    fitted_on = round(share * n)
    if not 0 < fitted_on < n:
        raise CiglError(f"a share of {share} of {n} samples leaves one part empty: both parts need samples.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(scores.device)
    fit, score = order[:fitted_on], order[fitted_on:].sort().values
    temperature = fit_temperature(logits=scores[fit], labels=labels[fit])
    before = report(logits=scores[score], labels=labels[score], bins=bins)
    after = report(logits=scores[score].double() / temperature.value, labels=labels[score], bins=bins)
    return HeldOut(temperature, fitted_on, before, after)
