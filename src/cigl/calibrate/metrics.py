"""Every number of a report as a function of how often each sample counts.

With all weights 1 that is the estimate, with the counts of a resample it is one bootstrap draw: one
implementation for both. All top-label schemes bin by confidence, so over samples sorted by confidence a bin is
a range, and its sums are differences of one running sum, whatever the number of schemes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from cigl.calibrate.bins import Array, bin_of, mass_edges, width_edges
from cigl.calibrate.intervals import noise_gaps
from cigl.calibrate.samples import Samples

HIGHER_IS_BETTER = ("accuracy", "top5")


def is_calibration_error(name: str) -> bool:
    """Whether a number is a mean or maximum of absolute gaps: never negative, so biased upwards by noise."""
    return name.startswith(("ece_", "mce_", "l2_"))


# From sums per bin (last axis) to a number


def expected_error(gaps: Array, n: float) -> Array:
    """ECE from each bin's sum of (confidence - correct), Guo et al. 2017, eq. 3: sum_b n_b/n |conf_b - acc_b|."""
    return np.asarray(np.abs(gaps).sum(-1) / n)


def maximum_error(gaps: Array, counts: Array) -> Array:
    """MCE, Guo et al. 2017, eq. 4: the largest |conf_b - acc_b|; empty bins don't take part."""
    return np.asarray((np.abs(gaps) / np.maximum(counts, 1)).max(-1))


def debiased_square(gaps: Array, counts: Array, hits: Array) -> Array:
    """Kumar, Liang & Ma 2019 (Verified Uncertainty Calibration), eq. 6: the squared L2 error without its noise.

    Each squared gap less the variance of its accuracy, acc (1 - acc) / (n_b - 1); bins of one sample say nothing.
    Negative where the gaps are smaller than noise makes them.
    """
    filled = np.maximum(counts, 1)
    accuracy = hits / filled
    noise = accuracy * (1 - accuracy) / np.maximum(counts - 1, 1)
    square = np.where(counts > 1, (gaps / filled) ** 2 - noise, 0.0)
    return np.asarray((square * counts).sum(-1) / counts.sum(-1))


def root(square: Array) -> Array:
    return np.sqrt(np.maximum(square, 0.0))


@dataclass(frozen=True)
class Scheme:
    """Top-label bins: bin b holds the samples ``cuts[b]`` to ``cuts[b + 1]`` in order of confidence."""

    edges: Array
    cuts: Array

    @classmethod
    def over(cls, ordered: Array, edges: Array) -> Scheme:
        inner = np.searchsorted(ordered, edges[1:-1], side="right")  # right-closed: the edge is inside
        return cls(edges, np.concatenate([[0], inner, [ordered.size]]))


class Segments:
    """The pieces between the cuts of all schemes: summed over once, they serve every scheme."""

    def __init__(self, schemes: Mapping[str, Scheme]):
        self.starts = np.unique(np.concatenate([scheme.cuts for scheme in schemes.values()]))
        self.places = {name: np.searchsorted(self.starts, scheme.cuts) for name, scheme in schemes.items()}

    def sums(self, values: Array) -> dict[str, Array]:
        """Per scheme the sums of ``values`` (draws, samples) in each bin."""
        running = np.zeros((values.shape[0], self.starts.size))
        np.cumsum(np.add.reduceat(values, self.starts[:-1], axis=1), axis=1, out=running[:, 1:])
        return {name: np.diff(running[:, places], axis=1) for name, places in self.places.items()}


class Measures:
    """What is to be measured on a test set, made ready once; call it with weights of shape (draws, samples).

    Weights are whole numbers and in order of confidence (``order``).

    >>> samples = Samples(*(np.array(x) for x in ([0, 1], [0, 0], [0.8, 0.6], [True, False], [0.2, 0.9], [0.1, 0.7])),
    ...     None)
    >>> measure = Measures(samples, np.array([[0.8, 0.2], [0.6, 0.4]]), bins=15)
    >>> round(float(measure(np.ones((1, 2), dtype=np.int32))["ece_15"][0]), 9)
    0.4
    """

    def __init__(self, samples: Samples, probabilities: Array, bins: int, dtype: torch.dtype = torch.float64):
        self.order = np.argsort(samples.confidence, kind="stable")
        self.bins = bins
        self.predicted = samples.predicted[self.order]
        self.confidence = samples.confidence[self.order]
        self.correct = samples.correct[self.order].astype(np.float64)
        means = {"accuracy": samples.correct, "top5": samples.top5, "nll": samples.nll, "brier": samples.brier}
        self.means = {
            name: values[self.order].astype(np.float64) for name, values in means.items() if values is not None
        }
        widths = {f"ece_{b}": width_edges(b, dtype).numpy() for b in dict.fromkeys((15, bins, 10))}
        edges = widths | {"ece_mass_15": mass_edges(samples.confidence, 15)}
        self.schemes = {name: Scheme.over(self.confidence, e) for name, e in edges.items()}
        self.segments = Segments(self.schemes)
        self.classwise = Classwise(probabilities[self.order], samples.labels[self.order], bins, dtype)
        self.risk = RiskCoverage(self.confidence, self.correct)

    @property
    def scheme(self) -> Scheme:
        """The equal-width scheme that was asked for."""
        return self.schemes[f"ece_{self.bins}"]

    def __call__(self, weights: Array) -> dict[str, Array]:
        n, asked = self.confidence.size, f"ece_{self.bins}"
        exact = weights.astype(np.float64)
        columns = np.stack([*self.means.values(), self.confidence - self.correct], axis=1)
        result = dict(zip([*self.means, "gap"], (exact @ columns).T / n, strict=True))
        gaps = self.segments.sums(exact * (self.confidence - self.correct))
        counts = self.segments.sums(exact)[asked]
        hits = self.segments.sums(exact * self.correct)[asked]
        result |= {name: expected_error(gap, n) for name, gap in gaps.items()}
        result[f"ece_classwise_{self.bins}"] = self.classwise(exact)
        result[f"mce_{self.bins}"] = maximum_error(gaps[asked], counts)
        result[f"l2_debiased_{self.bins}"] = debiased_square(gaps[asked], counts, hits)
        result["aurc"] = self.risk(weights)
        return result

    def floors(self) -> dict[str, float]:
        """The expectation of each top-label ECE if the confidences were right."""
        sums = noise_gaps(self.confidence.clip(0, 1), self.segments.starts, self.segments.places)
        return {name: value / self.confidence.size for name, value in sums.items()}

    def of_labels(self, labels: Array) -> dict[str, Array]:
        """Every calibration error that drawn labels (draws, samples; in order of confidence) would show."""
        gaps = self.segments.sums(self.confidence - (labels == self.predicted))
        result = {name: expected_error(gap, self.confidence.size) for name, gap in gaps.items()}
        result[f"ece_classwise_{self.bins}"] = self.classwise.of_labels(labels)
        result[f"mce_{self.bins}"] = maximum_error(gaps[f"ece_{self.bins}"], np.diff(self.scheme.cuts))
        return result


class Classwise:
    """ECE of every class's own probability, averaged over classes (Nixon et al. 2019, static calibration error).

    A cell is a class and a bin. Nearly all of the n*C probabilities are in the lowest bin: those are summed as
    a matrix product, the few others (less than ``bins`` per sample) as a sparse one.
    """

    def __init__(self, probabilities: Array, labels: Array, bins: int, dtype: torch.dtype):
        self.n, self.classes = probabilities.shape
        self.bins = bins
        index = bin_of(torch.from_numpy(probabilities), width_edges(bins, dtype)).numpy()
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

    def __call__(self, weights: Array) -> Array:
        higher = torch.sparse.mm(self.higher, torch.from_numpy(np.ascontiguousarray(weights.T)))
        return np.asarray((np.abs(weights @ self.lowest).sum(1) + higher.abs().sum(0).numpy()) / self.n / self.classes)

    def of_labels(self, labels: Array) -> Array:
        """The error that these labels (draws, samples) would show."""
        rows = np.arange(self.n)
        hits = (np.bincount(self.cells[rows, drawn], minlength=self.expected.size) for drawn in labels)
        return np.array([expected_error(self.expected - h, self.n * self.classes) for h in hits])


class RiskCoverage:
    """Area under the risk-coverage curve: the error among the k most confident, averaged over k = 1..n.

    (1/n) sum_k (1/k) sum_{i<=k} error_i = (1/n) sum_i error_i (H_n - H_{i-1}) with harmonic numbers H, so only
    the places of errors count, and of a run of errors only its ends. Samples of equal confidence come in random
    order: each has the mean over their places.
    """

    def __init__(self, confidence: Array, correct: Array):
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

    def __call__(self, weights: Array) -> Array:
        running = np.zeros((weights.shape[0], self.n + 1), dtype=np.int32)
        np.cumsum(weights, axis=1, out=running[:, 1:], dtype=np.int32)
        running = self.n - running  # how many are more confident
        start, end = running[:, self.starts], running[:, self.ends]
        values = self.value[start] - self.value[end]
        for run in self.mixed:  # equal confidence, not all wrong
            part = slice(self.starts[run], self.ends[run])
            size = np.maximum(start[:, run] - end[:, run], 1)
            values[:, run] *= weights[:, part] @ self.wrong[part] / size
        return np.asarray(values.sum(1) / self.n)
