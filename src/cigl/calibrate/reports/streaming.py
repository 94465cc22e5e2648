"""Calibration of more data than fits: a few sums instead of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cigl.calibrate.measures.bins import bin_of, check_bins, width_edges
from cigl.calibrate.measures.metrics import Sums, mean_gap
from cigl.calibrate.measures.samples import (
    Rows,
    check_logits,
    check_probabilities,
    checked_input,
    in_top,
    measure_rows,
    warn_of_impossible,
)
from cigl.calibrate.registry import BINS, listed
from cigl.common.errors import CiglError

_ROWS, _ELEMENTS = 4096, 1 << 20  # of a block, at most


class Streaming:
    """Accuracy, NLL, Brier, gap, equal-width ECE and MCE over any number of batches, in constant size.

    ``top5`` and ``classwise`` are counted on request (classwise costs a pass over all probabilities). What needs
    the samples (intervals, equal-mass bins, the risk-coverage curve) is not offered here; nor is a registered metric
    without ``streamed``. Batches are measured on their own device, in float32 at least; the sums are float64, on the
    CPU.

    >>> import torch
    >>> from cigl.calibrate import Streaming
    >>> stream = Streaming(classes=3)
    >>> stream.update(logits=torch.randn(100, 3), labels=torch.randint(0, 3, (100,)))
    >>> stream.update(logits=torch.randn(50, 3), labels=torch.randint(0, 3, (50,)))
    >>> stream.n, sorted(stream.compute())
    (150, ['accuracy', 'brier', 'ece_15', 'gap', 'mce_15', 'nll'])
    """

    def __init__(self, classes: int, *, bins: int = BINS, top5: bool = False, classwise: bool = False):
        if not isinstance(classes, (int, np.integer)) or isinstance(classes, bool) or classes < 2:
            raise CiglError(f"classes is {classes!r}: say how many there are, a whole number of at least 2.")
        if top5 and classes <= 5:
            raise CiglError(f"top-5 of {classes} classes is always right: leave top5 out.")
        self.classes, self.bins, self.top5, self.classwise = int(classes), check_bins(bins), top5, classwise
        # One vector, so that merging and reducing are one addition. Counts are exact in float64 up to 2**53.
        # Per bin: counts, hits, confidence, NLL and Brier.
        self._sizes = {"bins": 5 * self.bins, "top5": int(top5), "cells": self.classes * self.bins if classwise else 0}
        self._done = np.zeros(sum(self._sizes.values()))  # numpy's: torch's could be stuck in its inference mode
        # A block is small enough for a cache; smaller batches are collected, so that each costs little by itself.
        self._block = max(1, min(_ROWS, _ELEMENTS // self.classes))
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._filled = 0
        self._kind: tuple[torch.dtype, torch.device, bool] | None = None  # the last is whether they are logits

    @property
    def _sums(self) -> Tensor:
        self._flush()
        return torch.from_numpy(self._done)

    def _named(self, sums: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._sizes, sums.split(list(self._sizes.values())), strict=True))

    @property
    def n(self) -> int:
        return int(self._done[: self.bins].sum()) + self._filled

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, *, logits: Any = None, probabilities: Any = None, labels: Any) -> None:
        """Add a batch of any size; exactly one of logits and probabilities. A bad batch changes nothing."""
        scores, labels, is_logits = checked_input(logits, probabilities, labels)
        if scores.shape[1] != self.classes:
            raise CiglError(f"the batch has {scores.shape[1]} classes, the accumulator {self.classes}.")
        blocks = list(zip(scores.split(self._block), labels.split(self._block), strict=True))
        for number, (block, own) in enumerate(blocks):
            if is_logits:
                check_logits(block, own, number * self._block)
            else:
                check_probabilities(block, number * self._block)
        if not is_logits:
            warn_of_impossible(int((scores.gather(1, labels[:, None]) == 0).sum()))
        for block, own in blocks:
            if 2 * len(block) > self._block:
                self._add(block, own, is_logits)
            else:
                self._keep(block, own, is_logits)

    def _keep(self, block: Tensor, labels: Tensor, is_logits: bool) -> None:
        kind = (block.dtype, block.device, is_logits)
        if kind != self._kind or self._filled + len(block) > self._block:
            self._flush()
        self._kind = kind
        self._kept.append((block.clone(), labels.clone()))  # the caller may change theirs
        self._filled += len(block)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _flush(self) -> None:
        if self._kept:
            scores, labels = (torch.cat(part) for part in zip(*self._kept, strict=True))
            self._kept, self._filled = [], 0
            self._add(scores, labels, self._kind is not None and self._kind[2])

    def _add(self, block: Tensor, labels: Tensor, is_logits: bool) -> None:
        added = torch.zeros(self._done.size, dtype=torch.float64)
        parts = self._named(added)
        dtype = torch.promote_types(block.dtype, torch.float32)
        binned_as = dtype if is_logits else block.dtype  # see width_edges
        exact = block.to(dtype)
        rows, p = measure_rows(exact, labels, is_logits)
        self._add_rows(parts["bins"], rows, binned_as)
        if self.top5:
            parts["top5"] += in_top(exact, labels, 5).sum().cpu()
        if self.classwise:
            self._add_cells(parts["cells"], p, labels, binned_as)
        self._done += added.numpy()

    def _add_rows(self, per_bin: Tensor, rows: Rows, dtype: torch.dtype) -> None:
        columns = (
            torch.ones_like(rows.brier),
            rows.correct.to(rows.brier.dtype),
            rows.confidence,
            rows.nll,
            rows.brier,
        )
        values = torch.stack(columns).cpu().double()
        index = bin_of(rows.confidence, width_edges(self.bins, dtype)).cpu()
        per_bin += (values @ (index[:, None] == torch.arange(self.bins)).double()).flatten()

    def _add_cells(self, cells: Tensor, p: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
        p = p.cpu().double()
        index = bin_of(p, width_edges(self.bins, dtype)) + torch.arange(self.classes) * self.bins
        p[torch.arange(len(p)), labels.cpu()] -= 1
        cells += torch.bincount(index.flatten(), p.flatten(), cells.numel())

    def merge(self, other: Streaming) -> None:
        """Add what another accumulator has seen.

        >>> a, b = Streaming(2), Streaming(2)
        >>> b.update(probabilities=[[0.9, 0.1]], labels=[0])
        >>> a.merge(b)
        >>> a.n
        1
        """
        if not isinstance(other, Streaming):
            raise CiglError(f"merge takes another Streaming, not {type(other).__name__}.")
        if self._shape() != other._shape():
            raise CiglError(
                "the accumulators differ in classes, bins, top5 or classwise: make them alike to merge them."
            )
        self._done += other._sums.numpy()

    def reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Under torch.distributed: every process has the sums of all. Call it once, at the end, on every process."""
        if not (dist.is_available() and dist.is_initialized()):
            raise CiglError(
                "there is no process group: call torch.distributed.init_process_group first, or leave out "
                "reduce on one process."
            )
        nccl = dist.get_backend(group) == "nccl"
        sums = self._sums.cuda() if nccl else self._sums.clone()
        dist.all_reduce(sums, group=group)
        self._done[:] = sums.cpu().numpy()

    def compute(self) -> dict[str, float]:
        """The numbers so far, under the names of a report."""
        n = self.n
        if not n:
            raise CiglError("there are no samples yet: call update(logits=..., labels=...) first.")
        bins, top5, cells = (part.numpy() for part in self._named(self._sums).values())
        counts, hits, confidence, nll, brier = bins.reshape(5, self.bins)
        if not np.isfinite(nll.sum()):
            raise CiglError(
                "the sum of the NLL is beyond what float64 holds: look for a diverged model, or divide the logits."
            )
        sums = Sums(n, counts, hits, confidence - hits, nll, brier)
        own = (each for each in listed(self.bins) if each.bins in (None, self.bins))
        result = {each.name: each.streamed(sums) for each in own if each.streamed is not None}
        if self.top5:
            result["top5"] = top5[0] / n
        if self.classwise:
            result[f"ece_classwise_{self.bins}"] = mean_gap(cells, n * self.classes)
        return {name: float(np.asarray(value)) for name, value in result.items()}

    def _shape(self) -> tuple[int, int, bool, bool]:
        return self.classes, self.bins, self.top5, self.classwise
