"""The numbers of a report as functions of sums per bin, or of how often each sample counts.

With all weights 1 that is the estimate, with the counts of a resample it is one bootstrap draw: one implementation for
both. ``registry`` lists them; ``measures`` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from cigl.calibrate.measures.bins import Array, bin_of, width_edges
from cigl.calibrate.measures.samples import Samples

# What numbers are computed from


@dataclass(frozen=True)
class Bins:
    """Sums per bin (last axis): samples, correct ones, and confidence - correct; ``n`` samples in all."""

    n: float
    counts: Array
    hits: Array
    gaps: Array


@dataclass(frozen=True)
class Sums(Bins):
    """All that ``Streaming`` keeps of its samples."""

    nll: Array
    brier: Array


@dataclass(frozen=True)
class Evaluated:
    """A test set and what was predicted for it, in order of confidence. Bin edges are rounded to ``dtype``."""

    samples: Samples
    probabilities: Array
    dtype: torch.dtype


class Weights(NamedTuple):
    """How often each sample counts (draws, samples), in order of confidence: as whole numbers and in float64."""

    whole: Array
    exact: Array


class Measure:
    """A number that needs a test set made ready once, and then its weights."""

    def __call__(self, weights: Weights) -> Array:
        """One number per draw."""
        raise NotImplementedError

    def of_labels(self, labels: Array) -> Array:
        """What drawn labels (draws, samples) would show; only asked for where the noise floor is drawn."""
        raise NotImplementedError


# From sums per bin to a number


def expected_error(bins: Bins) -> Array:
    """ECE, Guo et al. 2017, eq. 3: sum_b n_b/n |conf_b - acc_b|."""
    return mean_gap(bins.gaps, bins.n)


def mean_gap(gaps: Array, n: float) -> Array:
    return np.asarray(np.abs(gaps).sum(-1) / n)


def maximum_error(bins: Bins) -> Array:
    """MCE, Guo et al. 2017, eq. 4: the largest |conf_b - acc_b|; empty bins don't take part."""
    return np.asarray((np.abs(bins.gaps) / np.maximum(bins.counts, 1)).max(-1))


def debiased_square(bins: Bins) -> Array:
    """Kumar, Liang & Ma 2019 (Verified Uncertainty Calibration), eq. 6: the squared L2 error without its noise.

    Each squared gap less the variance of its accuracy, acc (1 - acc) / (n_b - 1); bins of one sample say nothing.
    Negative where the gaps are smaller than noise makes them.
    """
    counts = bins.counts
    filled = np.maximum(counts, 1)
    accuracy = bins.hits / filled
    noise = accuracy * (1 - accuracy) / np.maximum(counts - 1, 1)
    square = np.where(counts > 1, (bins.gaps / filled) ** 2 - noise, 0.0)
    return np.asarray((square * counts).sum(-1) / counts.sum(-1))


def root(square: Array) -> Array:
    result: Array = np.sqrt(np.maximum(square, 0.0))
    return result


# From the whole test set to a number

_CELLS = 1 << 24  # sums of cells that are held at once, which is 128 MB


class Classwise(Measure):
    """ECE of every class's own probability, averaged over classes (Nixon et al. 2019, static calibration error).

    A cell is a class and a bin. Nearly all of the n*C probabilities are in the lowest bin: those are summed as
    a matrix product, the few others (less than ``bins`` per sample) as a sparse one.
    """

    def __init__(self, given: Evaluated, bins: int):
        probabilities, labels = given.probabilities, given.samples.labels
        self.n, self.classes = probabilities.shape
        index = bin_of(torch.from_numpy(probabilities), width_edges(bins, given.dtype)).numpy()
        self.cells = (index + np.arange(self.classes) * bins).astype(np.int32)
        self.expected = np.bincount(self.cells.ravel(), probabilities.ravel(), self.classes * bins)
        gaps = probabilities.copy()
        gaps[np.arange(self.n), labels] -= 1
        rows, columns = np.nonzero(index)
        cells = torch.from_numpy(np.stack([self.cells[rows, columns].astype(np.int64), rows]))
        values = torch.from_numpy(gaps[rows, columns])
        shape = (self.classes * bins, self.n)
        self.higher = torch.sparse_coo_tensor(cells, values, shape, check_invariants=True).coalesce()
        gaps[rows, columns] = 0
        self.lowest = gaps

    def __call__(self, weights: Weights) -> Array:
        lowest = np.abs(weights.exact @ self.lowest).sum(1)
        size = max(1, _CELLS // self.expected.size)
        parts = [weights.exact[start : start + size] for start in range(0, len(weights.exact), size)]
        higher = np.concatenate([self._higher(part) for part in parts])
        return np.asarray((lowest + higher) / self.n / self.classes)

    def _higher(self, weights: Array) -> Array:
        sums = torch.sparse.mm(self.higher, torch.from_numpy(np.ascontiguousarray(weights.T)))
        return np.asarray(sums.abs().sum(0).numpy())

    def of_labels(self, labels: Array) -> Array:
        rows = np.arange(self.n)
        hits = (np.bincount(self.cells[rows, drawn], minlength=self.expected.size) for drawn in labels)
        return np.array([mean_gap(self.expected - h, self.n * self.classes) for h in hits])


class RiskCoverage(Measure):
    """Area under the risk-coverage curve: the error among the k most confident, averaged over k = 1..n.

    (1/n) sum_k (1/k) sum_{i<=k} error_i = (1/n) sum_i error_i (H_n - H_{i-1}) with harmonic numbers H, so only
    the places of errors count, and of a run of errors only its ends. Samples of equal confidence come in random
    order: each has the mean over their places.
    """

    def __init__(self, given: Evaluated):
        confidence, correct = given.samples.confidence, given.samples.correct.astype(np.float64)
        self.n = n = confidence.size
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
        self.value = np.concatenate([[0.0], np.cumsum(harmonic[n] - harmonic[:n])])  # of errors in the first places
        starts = np.flatnonzero(np.concatenate([[True], np.diff(confidence) > 0]))
        share = np.add.reduceat(1 - correct, starts) / np.diff(starts, append=n)
        new = np.concatenate([[True], (np.diff(share) != 0) | (share[1:] % 1 > 0)])  # join runs of 0 and of 1
        starts, share = starts[new], share[new]
        ends = np.append(starts[1:], n)
        self.starts, self.ends = starts[share > 0], ends[share > 0]
        self.wrong = 1 - correct
        self.mixed = np.flatnonzero(share[share > 0] < 1)

    def __call__(self, weights: Weights) -> Array:
        whole = weights.whole
        running = np.zeros((whole.shape[0], self.n + 1), dtype=np.int32)
        np.cumsum(whole, axis=1, out=running[:, 1:], dtype=np.int32)
        running = self.n - running  # how many are more confident
        start, end = running[:, self.starts], running[:, self.ends]
        values = self.value[start] - self.value[end]
        for run in self.mixed:  # equal confidence, not all wrong
            part = slice(self.starts[run], self.ends[run])
            size = np.maximum(start[:, run] - end[:, run], 1)
            values[:, run] *= whole[:, part] @ self.wrong[part] / size
        return np.asarray(values.sum(1) / self.n)
