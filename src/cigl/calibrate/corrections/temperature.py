"""Temperature scaling (Guo et al. 2017), one of the paper's baselines (section 5.3)."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cigl.calibrate.corrections.ensemble import logits_of
from cigl.calibrate.measures.samples import checked_input
from cigl.common.errors import CiglError

# Where no finite temperature is best: this much colder or hotter than the logits' own scale is as good as the limit.
_LIMIT = 1e3
_HUGE = 1e100
_WIDEST = 700.0  # of log(1/T): beyond it, exp leaves float64


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature: ``value``, and the NLL before and after.

    ``clamped`` says that no finite temperature is best, and ``value`` is the limit.

    >>> import torch
    >>> from cigl.calibrate import fit_temperature
    >>> fit_temperature(logits=torch.tensor([[4.0, 0.0]] * 4), labels=[0, 0, 0, 0]).clamped
    True
    """

    value: float
    clamped: bool
    nll_before: float
    nll_after: float


def fit_temperature(*, logits: Any, labels: Any) -> Temperature:
    """The T that minimises the NLL of softmax(logits / T) on held-out data.

    NLL is convex in 1/T, so its slope mean(E_p[z] - z_label) has at most one zero; it is found in log(1/T), inside
    a bracket that is widened until it holds it. Where every label is predicted right, colder is always better;
    where labels are worse than chance, hotter is: then a value near the limit is returned, flagged.

    Args:
        logits: Of held-out data, (samples, classes). Logits of -inf rule out a class that is never a label.
        labels: Class numbers from 0.

    >>> import torch
    >>> from cigl.calibrate import fit_temperature
    >>> logits = torch.tensor([[4.0, 0.0]] * 4)
    >>> t = fit_temperature(logits=logits, labels=torch.tensor([0, 0, 0, 1]))  # 3 of 4: logit log(3)
    >>> round(t.value, 4), t.clamped
    (3.641, False)
    """
    if logits is None:
        raise CiglError("a temperature is fitted on logits: pass logits= (of probabilities p, p.log() is one).")
    scores, labels, _ = checked_input(logits, None, labels)
    z = scores.double().cpu()
    ahead = z - z.gather(1, labels.cpu()[:, None])  # of the label; only differences matter
    if not bool((ahead < math.inf).all()):  # False for NaN
        raise CiglError(
            "logits have NaN or infinity, or a label's logit is -inf: no temperature can be fitted; leave "
            "such samples out."
        )
    before = _nll(ahead, 1.0)
    unit = _unit(ahead)
    value, clamped = _best(ahead / unit)
    value = min(value * unit, sys.float_info.max)
    after = _nll(ahead, value)
    if after > before:  # by rounding, or because the limit would have to be nearer
        value, after = 1.0, before
    return Temperature(value, clamped, before, after)


def _best(ahead: Tensor) -> tuple[float, bool]:
    """(temperature, whether it stands for 0 or infinity)."""
    finite, size = ahead.isfinite(), ahead.abs()
    apart = size[finite & (size > 0)]
    if not apart.numel():  # all classes alike: temperature changes nothing
        return 1.0, True
    if not bool((ahead > 0).any()):  # every label is the largest, or as large
        return min(1.0, max(float(apart.min()) / _LIMIT, 1e-30)), True
    # As 1/T goes to 0 all finite classes become equally likely; the slope there decides about the other limit.
    uniform = ahead.masked_fill(~finite, 0).sum(1) / finite.sum(1)
    if float(uniform.mean()) >= 0:
        return max(1.0, min(float(apart.max()) * _LIMIT, 1e30)), True
    nearest = size.masked_fill(~finite | (size == 0), math.inf).amin(1)
    u = -math.log(float(nearest[nearest < math.inf].median()))  # masked classes and wild rows don't sway a median
    low = high = min(max(u, -_WIDEST), _WIDEST)
    step = 1.0
    while _slope(ahead, low)[0] >= 0 and low > -_WIDEST:
        low, step = max(low - step, -_WIDEST), 2 * step
    step = 1.0
    while _slope(ahead, high)[0] <= 0 and high < _WIDEST:
        high, step = min(high + step, _WIDEST), 2 * step
    return math.exp(-_zero(ahead, low, high)), False


def _zero(ahead: Tensor, low: float, high: float) -> float:
    u = (low + high) / 2
    for count in range(1, 400):
        slope, curvature = _slope(ahead, u)
        low, high = (u, high) if slope < 0 else (low, u)
        step = u - slope / curvature if curvature > 0 else low
        # Newton's steps may creep along one side: every fourth halves the bracket.
        new = step if low < step < high and count % 4 else (low + high) / 2
        if abs(new - u) < 1e-9 or high - low < 1e-9:
            return new
        u = new
    return u


def _slope(ahead: Tensor, u: float) -> tuple[float, float]:
    """Of the NLL, and the slope's own derivative by u = log(1/T)."""
    beta = math.exp(u)
    p = ((ahead - ahead.amax(1, keepdim=True)) * beta).softmax(1)
    d = torch.where(p > 0, ahead, 0.0)
    mean = (p * d).sum(1, keepdim=True)
    variance = (p * (d - mean).square()).sum(1)
    return float(mean.mean()), beta * float(variance.mean())


def _nll(ahead: Tensor, temperature: float) -> float:
    rows = (ahead / temperature).logsumexp(1)
    unit = _unit(rows)
    return float((rows / unit).mean()) * unit


def _unit(values: Tensor) -> float:
    """A power of two to divide by, so that neither squares nor sums overflow; 1 unless values are huge."""
    finite = values[values.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return math.ldexp(1.0, math.frexp(largest)[1]) if largest > _HUGE else 1.0


class TemperatureScaled(nn.Module):
    """A model whose logits are divided by a temperature; saved and moved with it.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import TemperatureScaled
    >>> model = TemperatureScaled(nn.Linear(4, 3), 2.0)
    >>> x = torch.randn(2, 4)
    >>> bool(torch.equal(model(x), model.model(x) / 2))
    True
    """

    temperature: Tensor

    def __init__(self, model: nn.Module, temperature: float | Temperature):
        super().__init__()
        value = temperature.value if isinstance(temperature, Temperature) else float(temperature)
        stored = torch.tensor(value, dtype=torch.float32)
        if not 0 < float(stored) < math.inf:
            raise CiglError(f"temperature is {value}: it must be positive and finite in float32.")
        self.model = model
        self.register_buffer("temperature", stored)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        logits = logits_of(self.model(*args, **kwargs))
        wide = torch.promote_types(logits.dtype, torch.float32)  # a small temperature is 0 in half precision
        return (logits.to(wide) / self.temperature.to(wide)).to(logits.dtype)
