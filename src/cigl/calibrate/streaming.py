"""Calibration of more data than fits: a few sums instead of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cigl.calibrate.bins import bin_of, check_bins, width_edges
from cigl.calibrate.metrics import expected_error, maximum_error
from cigl.calibrate.samples import check_probabilities, checked_input, in_top, measure_rows
from cigl.errors import CiglError

_ELEMENTS = 1 << 18  # of a block: small enough for a cache


class Streaming:
    """Accuracy, NLL, Brier, gap, equal-width ECE and MCE over any number of batches, in constant size.

    ``top5`` and ``classwise`` are counted on request (classwise costs a pass over all probabilities). What needs
    the samples (intervals, equal-mass bins, the risk-coverage curve) is not offered here. Batches are measured on
    their own device, in float32 at least; the sums are float64, on the CPU.

    >>> stream = Streaming(classes=3)
    >>> stream.update(logits=torch.randn(100, 3), labels=torch.randint(0, 3, (100,)))
    >>> stream.update(logits=torch.randn(50, 3), labels=torch.randint(0, 3, (50,)))
    >>> stream.n, sorted(stream.compute())
    (150, ['accuracy', 'brier', 'ece_15', 'gap', 'mce_15', 'nll'])
    """

    def __init__(self, classes: int, *, bins: int = 15, top5: bool = False, classwise: bool = False):
        self.classes, self.bins, self.top5, self.classwise = classes, check_bins(bins), top5, classwise
        if top5 and classes <= 5:
            raise CiglError(f"top-5 of {classes} classes is always right: leave top5 out.")
        # One vector, so that merging and reducing are one addition. Counts are exact in float64 up to 2**53.
        parts = {"totals": 3, "counts": bins, "hits": bins, "confidence": bins}  # totals: NLL, Brier, top-5 hits
        if classwise:
            parts["cells"] = classes * bins
        self._sums = torch.zeros(sum(parts.values()), dtype=torch.float64)
        self._parts = dict(zip(parts, self._sums.split(list(parts.values())), strict=True))

    @property
    def n(self) -> int:
        return int(self._parts["counts"].sum())

    @torch.no_grad()
    def update(self, *, logits: Any = None, probabilities: Any = None, labels: Any) -> None:
        """Add a batch of any size; exactly one of logits and probabilities. A bad batch changes nothing."""
        scores, labels, is_logits = checked_input(logits, probabilities, labels)
        if scores.shape[1] != self.classes:
            raise CiglError(f"the batch has {scores.shape[1]} classes, the accumulator {self.classes}.")
        before = self._sums.clone()
        rows = max(1, _ELEMENTS // self.classes)
        try:
            for block, own in zip(scores.split(rows), labels.split(rows), strict=True):
                self._add(block, own, is_logits)
        except CiglError:
            self._sums.copy_(before)
            raise

    def _add(self, given: Tensor, labels: Tensor, is_logits: bool) -> None:
        scores = given.to(torch.promote_types(given.dtype, torch.float32))
        if not is_logits:
            check_probabilities(given)
        rows, p = measure_rows(scores, labels, is_logits)
        edges = width_edges(self.bins, scores.dtype if is_logits else given.dtype)
        index = bin_of(rows.confidence, edges).cpu()
        parts = self._parts
        parts["counts"] += torch.bincount(index, minlength=self.bins)
        parts["hits"] += torch.bincount(index, rows.correct.double().cpu(), self.bins)
        parts["confidence"] += torch.bincount(index, rows.confidence.double().cpu(), self.bins)
        parts["totals"][0] += rows.nll.double().cpu().sum()
        parts["totals"][1] += rows.brier.double().cpu().sum()
        if self.top5:
            parts["totals"][2] += in_top(scores, labels, 5).sum().cpu()
        if self.classwise:
            p = p.double().cpu()
            cells = bin_of(p, edges) + torch.arange(self.classes) * self.bins
            p[torch.arange(len(p)), labels.cpu()] -= 1
            parts["cells"] += torch.bincount(cells.flatten(), p.flatten(), parts["cells"].numel())

    def merge(self, other: Streaming) -> None:
        """Add what another accumulator has seen.

        >>> a, b = Streaming(2), Streaming(2)
        >>> b.update(probabilities=[[0.9, 0.1]], labels=[0])
        >>> a.merge(b)
        >>> a.n
        1
        """
        if self._shape() != other._shape():
            raise CiglError(
                "the accumulators differ in classes, bins, top5 or classwise: make them alike to merge them."
            )
        self._sums += other._sums

    def reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Under torch.distributed: every process has the sums of all. Call it once, at the end, on every process."""
        nccl = dist.get_backend(group) == "nccl"
        sums = self._sums.cuda() if nccl else self._sums.clone()
        dist.all_reduce(sums, group=group)
        self._sums.copy_(sums)

    def compute(self) -> dict[str, float]:
        """The numbers so far, under the names of a report."""
        n = self.n
        if not n:
            raise CiglError("there are no samples yet: call update(logits=..., labels=...) first.")
        totals, counts, hits, confidence, *cells = (part.numpy() for part in self._parts.values())
        gaps = confidence - hits
        result = {"accuracy": hits.sum() / n, "nll": totals[0] / n, "brier": totals[1] / n, "gap": gaps.sum() / n}
        result[f"ece_{self.bins}"] = expected_error(gaps, n)
        result[f"mce_{self.bins}"] = maximum_error(gaps, counts)
        if self.top5:
            result["top5"] = totals[2] / n
        if cells:
            result[f"ece_classwise_{self.bins}"] = expected_error(cells[0], n * self.classes)
        return {name: float(np.asarray(value)) for name, value in result.items()}

    def _shape(self) -> tuple[int, int, bool, bool]:
        return self.classes, self.bins, self.top5, self.classwise
