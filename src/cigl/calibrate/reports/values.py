"""All numbers of a report at once, as functions of how often each sample counts.

All top-label schemes bin by confidence, so over samples sorted by confidence a bin is a range, and its sums are
differences of one running sum, whatever the number of schemes. Which numbers there are, ``registry`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from cigl.calibrate.measures.bins import Array, mass_edges, width_edges
from cigl.calibrate.measures.intervals import noise_gaps
from cigl.calibrate.measures.metrics import Bins, Evaluated, Measure, Weights
from cigl.calibrate.measures.samples import Samples
from cigl.calibrate.registry import MeanOf, Metric, OverBins, listed
from cigl.common.errors import CiglError


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
        self.bins = bins
        self.order = np.argsort(samples.confidence, kind="stable")
        given = Evaluated(_in_order(samples, self.order), probabilities[self.order], dtype)
        self.predicted, self.confidence = given.samples.predicted, given.samples.confidence
        self.correct = given.samples.correct.astype(np.float64)
        self.metrics: list[Metric] = []
        means: dict[str, Array] = {}
        self.over_bins: dict[str, str] = {}  # the scheme of each metric
        self.over_samples: dict[str, Measure] = {}
        self.schemes: dict[str, Scheme] = {}
        for each in listed(bins):
            computed = each.computed
            if isinstance(computed, MeanOf):
                column = computed.column(given)
                if column is None:
                    continue
                means[each.name] = column.astype(np.float64)
                if column.shape != (samples.n,) or not np.isfinite(means[each.name]).all():
                    raise CiglError(f"metric {each.name!r} must be computed as one finite number per sample.")
            elif isinstance(computed, OverBins):
                number = each.bins or bins
                self.over_bins[each.name] = key = f"{computed.scheme} {number}"
                if key not in self.schemes:
                    mass = computed.scheme == "mass"
                    edges = mass_edges(samples.confidence, number) if mass else width_edges(number, dtype).numpy()
                    self.schemes[key] = Scheme.over(self.confidence, edges)
            else:
                self.over_samples[each.name] = computed.prepare(given, each.bins or bins)
            self.metrics.append(each)
        self.means = list(means)
        self.columns = np.stack(list(means.values()), axis=1)
        self.units = _units(self.columns)
        self.columns /= self.units
        self.segments = Segments(self.schemes)
        self.expected = self.segments.sums(self.confidence[None])  # confidence per bin

    @property
    def scheme(self) -> Scheme:
        """The equal-width scheme that was asked for."""
        return self.schemes[f"width {self.bins}"]

    def __call__(self, whole: Array) -> dict[str, Array]:
        n = self.confidence.size
        weights = Weights(whole, whole.astype(np.float64))
        found = dict(zip(self.means, (weights.exact @ self.columns / n * self.units).T, strict=True))
        gaps = self.segments.sums(weights.exact * (self.confidence - self.correct))
        counts = self.segments.sums(weights.exact)
        hits = self.segments.sums(weights.exact * self.correct)
        bins = {key: Bins(n, counts[key], hits[key], gaps[key]) for key in self.schemes}
        return {
            each.name: found[each.name] if each.name in found else self._computed(each, bins, weights)
            for each in self.metrics
        }

    def _computed(self, metric: Metric, bins: Mapping[str, Bins], weights: Weights) -> Array:
        if isinstance(metric.computed, OverBins):
            return metric.computed.error(bins[self.over_bins[metric.name]])
        return self.over_samples[metric.name](weights)

    def floors(self) -> dict[str, float]:
        """The expectation of each top-label ECE if the confidences were right."""
        names = {each.name: self.over_bins[each.name] for each in self.metrics if each.floor == "exact"}
        places = {key: self.segments.places[key] for key in names.values()}
        sums = noise_gaps(self.confidence.clip(0, 1), self.segments.starts, places)
        return {name: sums[key] / self.confidence.size for name, key in names.items()}

    def of_labels(self, labels: Array) -> dict[str, Array]:
        """Every number with a noise floor as drawn labels (draws, samples; in order of confidence) would show it."""
        gaps = self.segments.sums(self.confidence - (labels == self.predicted))
        bins = {
            key: Bins(self.confidence.size, np.diff(scheme.cuts), np.rint(self.expected[key] - gaps[key]), gaps[key])
            for key, scheme in self.schemes.items()
        }
        found = {}
        for each in self.metrics:
            if each.floor == "none":
                continue
            if isinstance(each.computed, OverBins):
                found[each.name] = each.computed.error(bins[self.over_bins[each.name]])
            else:
                found[each.name] = self.over_samples[each.name].of_labels(labels)
        return found


def _units(columns: Array) -> Array:
    """Powers of two to divide columns by, so that no sum overflows where its mean does not; usually 1."""
    _, exponents = np.frexp(np.abs(columns).max(0))  # below 2**exponent
    spare = 1020 - len(columns).bit_length()
    return np.asarray(np.ldexp(1.0, np.maximum(exponents - spare, 0)))


def _in_order(samples: Samples, order: Array) -> Samples:
    columns: dict[str, Any] = {each.name: getattr(samples, each.name) for each in fields(samples)}
    return replace(samples, **{name: column[order] for name, column in columns.items() if column is not None})
