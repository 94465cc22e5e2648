"""The paper's Bayesian reading (section 4.2 and its appendix), which is derived for regression.

A member is a draw of the weights; y given the weights is normal with precision tau. So a prediction has the
members' mean, and as variance their spread plus 1/tau (Gal & Ghahramani 2016, appendix, eq. 2.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.calibrate.measures import intervals
from cigl.calibrate.measures.samples import as_tensor
from cigl.calibrate.reports.classification import RESAMPLES, Estimate
from cigl.calibrate.reports.evaluation import evaluating, forward, labels_of
from cigl.common.errors import CiglError
from cigl.common.notebook import Preformatted
from cigl.common.text import percent

LEVELS = (0.5, 0.8, 0.9, 0.95)
CURVE = tuple(k / 20 for k in range(1, 20))


def weight_decay(precision: float, keep_probability: float, samples: int) -> float:
    """torch's ``weight_decay`` of a layer that stands for noise of precision tau, p / (tau N).

    The paper's appendix scales the objective to (1/2N) sum |y - f(x)|^2 + lambda |W|^2 with lambda = p / (2 tau N)
    per layer, p the probability of keeping a weight. torch adds ``weight_decay * W`` to the gradient, which is
    that of weight_decay/2 |W|^2: twice lambda. For a loss without the half (``mse_loss``), double it.

    >>> from cigl.calibrate import weight_decay
    >>> weight_decay(precision=10.0, keep_probability=0.9, samples=900)
    0.0001
    """
    return _share(keep_probability, samples, precision=precision)


def precision(weight_decay: float, keep_probability: float, samples: int) -> float:
    """The precision tau that a layer's ``weight_decay`` stands for: the inverse of ``weight_decay``.

    >>> from cigl.calibrate import precision
    >>> round(precision(weight_decay=1e-4, keep_probability=0.9, samples=900), 9)
    10.0
    """
    return _share(keep_probability, samples, weight_decay=weight_decay)


def _share(keep_probability: float, samples: int, **other: float) -> float:
    """p / (other N): weight decay from precision, and back."""
    ((name, value),) = other.items()
    return _positive("keep_probability", keep_probability) / (_positive(name, value) * _positive("samples", samples))


def _positive(name: str, value: float) -> float:
    limit = 1.0 if name == "keep_probability" else math.inf
    if not 0 < value <= limit:
        raise CiglError(f"{name} is {value}: it must be positive{' and at most 1' if limit == 1 else ''}.")
    return value


@dataclass(frozen=True)
class RegressionReport(Preformatted):
    """Gaussian predictions against targets; ``regression_report`` and ``evaluate_regression`` make it.

    ``coverage[0.9]`` is the share of targets inside the central 90 % interval; ``curve`` lists (level, share of targets
    below that quantile). For a calibrated model all shares equal their levels.
    """

    n: int
    nll: Estimate
    rmse: Estimate
    coverage: dict[float, Estimate]
    curve: list[tuple[float, float]]

    @property
    def calibration_error(self) -> float:
        """The mean distance of the calibration curve from the diagonal (Kuleshov et al. 2018, with p = 1)."""
        return float(np.mean([abs(level - share) for level, share in self.curve]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "gaussian_nll": self.nll.to_dict(),
            "rmse": self.rmse.to_dict(),
            "coverage": {str(level): share.to_dict() for level, share in self.coverage.items()},
            "curve": [list(point) for point in self.curve],
        }

    def __str__(self) -> str:
        rows = {"gaussian nll": self.nll, "rmse": self.rmse}
        rows |= {f"coverage of {percent(level, 0)}": share for level, share in self.coverage.items()}
        lines = [f"{self.n} targets; 95 % intervals", f"{'':<20}{'value':>9}{'low':>9}{'high':>9}"]
        lines += [f"{name:<20}{e:9.4f}{e.low:9.4f}{e.high:9.4f}" for name, e in rows.items()]
        return "\n".join([*lines, f"calibration curve off by {self.calibration_error:.4f} on average"])


def regression_report(*, mean: Any, variance: Any, targets: Any, resamples: int = RESAMPLES) -> RegressionReport:
    """The report on normal predictions. All three arguments have the same shape, the first dimension being samples.

    Args:
        mean: Of the predictions.
        variance: Of the predictions, positive.
        targets: What was observed.
        resamples: How many resamples the bootstrap draws.

    >>> import torch
    >>> from cigl.calibrate import regression_report
    >>> g = torch.Generator().manual_seed(0)
    >>> r = regression_report(mean=torch.zeros(5000), variance=torch.ones(5000), targets=torch.randn(5000, generator=g))
    >>> r.coverage[0.9].low < 0.9 < r.coverage[0.9].high
    True
    """
    resamples = intervals.check_resamples(resamples)
    given = {"means": mean, "variances": variance, "targets": targets}
    values = [as_tensor(value, name).cpu().double() for name, value in given.items()]
    if len({value.shape for value in values}) > 1 or not values[0].numel() or not values[0].ndim:
        shapes = ", ".join(str(tuple(value.shape)) for value in values)
        raise CiglError(f"mean, variance and targets must have one shape with at least one sample, not {shapes}.")
    center, spread, target = (value.reshape(len(value), -1) for value in values)
    if not all(bool(torch.isfinite(value).all()) for value in values) or not bool((spread > 0).all()):
        raise CiglError(
            "mean, variance and targets must be finite and variances positive: members that all agree have "
            "none of their own, so give the noise's precision."
        )
    z = (target - center) / spread.sqrt()
    below = torch.special.ndtr(z)
    nll = (torch.log(2 * math.pi * spread) + z.square()).mul(0.5).mean(1)
    columns = [nll, (target - center).square().mean(1)]
    columns += [((2 * below - 1).abs() <= level).double().mean(1) for level in LEVELS]
    table = torch.stack(columns, 1).numpy()
    n = len(table)
    draws = np.concatenate([weights @ table for weights in intervals.resamples(n, resamples, np.arange(n))]) / n
    points = table.mean(0)
    points[1], draws[:, 1] = np.sqrt(points[1]), np.sqrt(draws[:, 1])
    nll_, rmse, *shares = (
        Estimate(float(point), *intervals.percentile_interval(own)) for point, own in zip(points, draws.T, strict=True)
    )
    curve = [(level, float((below <= level).double().mean())) for level in CURVE]
    return RegressionReport(n, nll_, rmse, dict(zip(LEVELS, shares, strict=True)), curve)


def evaluate_regression(
    members: Iterable[nn.Module],
    loader: Iterable[Any],
    *,
    noise_precision: float,
    device: torch.device | str | None = None,
    resamples: int = RESAMPLES,
) -> RegressionReport:
    """The report on the mean and the spread of several models, with the noise variance 1/tau added.

    Args:
        members: Draws of the weights: ``sparse.sample_posterior(20, train_loader)``, ``sparse.members(20)`` or an
            ensemble.
        loader: Batches (inputs, targets), in the same order each time.
        noise_precision: tau: ``precision(weight_decay, keep_probability, samples)``, or 1 over the mean squared error
            on validation data.
        device: Where to run; by default where each model is.
        resamples: How many resamples the bootstrap draws.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import evaluate_regression
    >>> loader = [(torch.randn(16, 4), torch.randn(16, 1)) for _ in range(4)]
    >>> evaluate_regression([nn.Linear(4, 1) for _ in range(5)], loader, noise_precision=1.0).n
    64
    """
    _positive("noise_precision", noise_precision)
    members = [] if isinstance(members, nn.Module) else list(members)
    if not members:
        raise CiglError("members must be a list of at least one model.")
    outputs, targets = zip(*(_outputs(member, loader, device) for member in members), strict=True)
    if any(not torch.equal(target, targets[0]) for target in targets):
        raise CiglError("the loader yields another order each time: every member must see the same, don't shuffle.")
    stacked = torch.stack(outputs).double()
    variance = stacked.var(0, correction=0) + 1 / noise_precision
    return regression_report(mean=stacked.mean(0), variance=variance, targets=targets[0], resamples=resamples)


@torch.no_grad()
def _outputs(model: nn.Module, loader: Iterable[Any], device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    with evaluating(model, device):
        pairs = [(forward(model, batch).cpu(), labels_of(batch).cpu()) for batch in loader]
    if not pairs:
        raise CiglError("the loader yielded no batch (a generator can be read only once: pass a list or a DataLoader).")
    outputs, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
    if outputs.shape == (*targets.shape, 1) or (*outputs.shape, 1) == targets.shape:  # one output, as a column or not
        targets = targets.reshape(outputs.shape)
    if outputs.shape != targets.shape:
        raise CiglError(
            f"the model's outputs are {tuple(outputs.shape)} and the targets {tuple(targets.shape)}: they "
            "must have one shape."
        )
    return outputs, targets
