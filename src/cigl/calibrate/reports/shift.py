"""Calibration under shift: a report per corruption and severity."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cigl.calibrate.corrections.corruptions import KINDS, SEVERITIES, check_severity, corrupt
from cigl.calibrate.reports.classification import RESAMPLES, Report
from cigl.calibrate.reports.evaluation import Members, evaluate, labels_of, with_members
from cigl.common.errors import CiglError, unknown
from cigl.common.notebook import Preformatted

CLEAN = 0
SHOWN = ("accuracy", "nll", "gap", "ece")


@dataclass(frozen=True)
class Shift(Preformatted):
    """Reports by kind of corruption and severity, 0 being the images as they are. Print it for a table.

    ``under_shift`` makes it: ``shift["noise"][3].ece`` is the ECE under noise of severity 3.
    """

    reports: dict[str, dict[int, Report]]

    def __getitem__(self, kind: str) -> dict[int, Report]:
        return self.reports[kind]

    def to_dict(self) -> dict[str, Any]:
        return {kind: {str(s): one.to_dict() for s, one in row.items()} for kind, row in self.reports.items()}

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Accuracy, NLL and ECE against severity, a line per kind; .svg, .png or .pdf (needs ``cigl[plot]``)."""
        from cigl.calibrate.reports.diagram import shift_figure

        shift_figure(self, path)

    def __str__(self) -> str:
        bins = next(iter(next(iter(self.reports.values())).values())).bins
        lines = [f"{'kind':<10}{'severity':>9}" + "".join(f"{name:>10}" for name in SHOWN[:-1])]
        lines[0] += f"{f'ece_{bins}':>10}{'low':>9}{'high':>9}{'floor':>9}"
        for kind, row in self.reports.items():
            for severity, one in row.items():
                ece = one.ece
                numbers = "".join(f"{float(getattr(one, name)):10.4f}" for name in SHOWN)
                lines.append(f"{kind:<10}{severity:>9}{numbers}{ece.low:9.4f}{ece.high:9.4f}{ece.floor:9.4f}")
        return "\n".join(lines)


def under_shift(
    model: nn.Module | None,
    loader: Iterable[Any],
    *,
    kinds: str | Iterable[str] = tuple(KINDS),
    severities: Iterable[int] = SEVERITIES,
    normalize: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    bins: int = 15,
    device: torch.device | str | None = None,
    members: Members = None,
    resamples: int = RESAMPLES,
) -> Shift:
    """Evaluate a model on images as they are and on each corruption of them.

    Args:
        model: Returns logits.
        loader: Batches (images, labels) with images from 0 to 1; read once per corruption.
        kinds: Of noise, blur, contrast, haze and pixelate.
        severities: Of 1 (weak) to 5 (strong).
        normalize: What the model expects to have been done to images; applied after the corruption.
        seed: Of the corruptions.
        bins: As for ``cigl.evaluate``.
        device: As for ``cigl.evaluate``.
        members: As for ``cigl.evaluate``.
        resamples: As for ``cigl.evaluate``.

    >>> import torch
    >>> from torch import nn
    >>> from cigl.calibrate import under_shift
    >>> loader = [(torch.rand(8, 1, 8, 8), torch.randint(0, 3, (8,))) for _ in range(2)]
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    >>> shift = under_shift(model, loader, kinds=["noise"], severities=[1, 5], resamples=50)
    >>> list(shift["noise"]), shift["noise"][5].n
    ([0, 1, 5], 16)
    """
    kinds, severities = [kinds] if isinstance(kinds, str) else list(kinds), list(severities)
    for kind in kinds:
        if kind not in KINDS:
            raise unknown("corruption", kind, KINDS)
    for severity in severities:
        check_severity(severity)
    if not kinds or not severities:
        raise CiglError("give at least one kind and one severity.")
    if iter(loader) is loader:
        raise CiglError("the loader can be read only once, and each corruption needs it: pass a list or a DataLoader.")

    averaged = with_members(model, members)  # once: members may be a generator

    def measured(kind: str, severity: int) -> Report:
        batches = _Corrupted(loader, kind, severity, seed, normalize)
        return evaluate(averaged, batches, bins=bins, device=device, resamples=resamples)

    clean = measured(kinds[0], CLEAN)
    return Shift({kind: {CLEAN: clean} | {s: measured(kind, s) for s in severities} for kind in kinds})


@dataclass(frozen=True)
class _Corrupted:
    loader: Iterable[Any]
    kind: str
    severity: int
    seed: int
    normalize: Callable[[Tensor], Tensor] | None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first = 0
        for batch in self.loader:
            if not isinstance(batch, (tuple, list)):
                raise CiglError(f"a batch is a {type(batch).__name__}: under shift it must be (images, labels).")
            images, labels = batch[0], labels_of(batch)
            worse = images
            if self.severity != CLEAN:
                worse = corrupt(images, self.kind, self.severity, seed=self.seed, first=first)
            first += len(images)
            yield (self.normalize(worse) if self.normalize else worse), labels
