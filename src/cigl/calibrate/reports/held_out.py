"""A temperature fitted on a part of the samples and scored on the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cigl.calibrate.corrections.temperature import Temperature, fit_temperature
from cigl.calibrate.measures.samples import checked_input
from cigl.calibrate.reports.classification import Report, report
from cigl.common.errors import CiglError
from cigl.common.notebook import Preformatted


@dataclass(frozen=True)
class HeldOut(Preformatted):
    """What ``split_and_scale`` returns: the temperature, and reports before and after it, on the other part alone.

    Print it for both tables.
    """

    temperature: Temperature
    fitted_on: int
    before: Report
    after: Report

    def __str__(self) -> str:
        note = " (clamped: no finite temperature is best)" if self.temperature.clamped else ""
        return (
            f"temperature {self.temperature.value:.4f}{note}, fitted on {self.fitted_on} samples, scored on "
            f"{self.after.n} others\n\nbefore: {self.before}\n\nafter: {self.after}"
        )


def split_and_scale(*, logits: Any, labels: Any, share: float = 0.2, seed: int = 0, bins: int = 15) -> HeldOut:
    """Fit a temperature on a random share of the samples and score it on the rest.

    A temperature scored on its own samples looks better than it is. Where there is a validation set, use
    ``fit_temperature`` on that and score the whole test set instead.

    Args:
        logits: Of shape (samples, classes).
        labels: Class numbers from 0.
        share: Of the samples, to fit on.
        seed: Of the split.
        bins: How many bins the calibration errors have.

    >>> import torch
    >>> from cigl.calibrate import split_and_scale
    >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> held_out = split_and_scale(logits=z, labels=z.argmax(1))
    >>> held_out.fitted_on, held_out.after.n
    (40, 160)
    """
    scores, labels, _ = checked_input(logits, None, labels)
    n = scores.shape[0]
    fitted_on = round(share * n) if 0 < share < 1 else 0
    if not 0 < fitted_on < n:
        raise CiglError(f"a share of {share} of {n} samples leaves one part empty: both parts need samples.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(scores.device)
    fit, score = order[:fitted_on], order[fitted_on:].sort().values
    temperature = fit_temperature(logits=scores[fit], labels=labels[fit])
    before = report(logits=scores[score], labels=labels[score], bins=bins)
    after = report(logits=scores[score].double() / temperature.value, labels=labels[score], bins=bins)
    return HeldOut(temperature, fitted_on, before, after)
