"""The metrics: name, direction, unit, how each is computed, how its interval is made, and where it is shown.

This is the one place that knows them. A new metric is an entry here (with its function, here or in ``metrics``);
reports, comparisons, their tables and files, and the page of a study then have it. From outside:

>>> def uncertain(given):
...     return given.samples.confidence < 0.5
>>> share = register(Metric("below_half", "Confidence below ½", MeanOf(uncertain), unit="%", scale=100, decimals=1))
>>> from cigl.calibrate.reports.classification import report
>>> round(report(probabilities=[[0.4, 0.3, 0.3], [0.9, 0.1, 0.0]], labels=[0, 0]).below_half, 3)
0.5
>>> del METRICS["below_half"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cigl.calibrate.measures.bins import Array
from cigl.calibrate.measures.intervals import calibration_interval, many_cells_interval, percentile_interval
from cigl.calibrate.measures.metrics import (
    Bins,
    Classwise,
    Evaluated,
    Measure,
    RiskCoverage,
    Sums,
    debiased_square,
    expected_error,
    maximum_error,
)
from cigl.common.errors import CiglError, unknown

BINS = 15  # by default
ASKED = 0  # stands for the number of bins that a report was asked for

# How a metric is computed: one of these three


@dataclass(frozen=True)
class MeanOf:
    """The mean of a number per sample; None where a test set does not have it."""

    column: Callable[[Evaluated], Array | None]


@dataclass(frozen=True)
class OverBins:
    """A function of sums per bin of confidence, the bins being of equal width or of equal mass."""

    error: Callable[[Bins], Array]
    scheme: Literal["width", "mass"] = "width"


@dataclass(frozen=True)
class OverSamples:
    """Anything else: ``prepare`` is given the test set and the number of bins (ASKED where it has none)."""

    prepare: Callable[[Evaluated, int], Measure]


# How its interval is made: from the value, its bootstrap draws and, where there is a floor, what drawn labels show

Interval = Callable[[float, Array, "Array | None"], tuple[float, float]]


def percentiles(value: float, draws: Array, null: Array | None) -> tuple[float, float]:
    return percentile_interval(draws)


@dataclass(frozen=True)
class Metric:
    """One metric. A family with a number of bins is one entry, named with the default number: ``ece_15``."""

    name: str
    title: str  # as tables and figures of a study show it
    computed: MeanOf | OverBins | OverSamples
    better: Literal["higher", "lower", "zero"] = "lower"
    unit: str = ""
    scale: float = 1  # shown are value * scale, in units
    decimals: int = 4
    bins: int | None = None
    listed_with: tuple[int, ...] = (ASKED,)  # the numbers of bins that every report lists
    interval: Interval = percentiles
    biased: bool = False  # a mean or maximum of absolute gaps: never negative and at most 1, so noise raises it
    floor: Literal["none", "exact", "drawn"] = "none"  # the expected sum of gaps, or the mean over drawn labels
    squared: bool = False  # bootstrapped as a square, which may be negative; shown as its root
    streamed: Callable[[Sums], Array] | None = None  # from the sums that ``Streaming`` keeps; None: not offered there
    in_studies: bool = False  # read from finished runs, and shown on a study's page
    is_share: bool = False  # of 1: printed reports show it in percent
    about: str = ""  # what it means, for people who have not met it

    def with_bins(self, bins: int) -> Metric:
        """The same with another number of bins; studies show the default number only."""
        name = f"{family(self)}_{bins}"
        return self if name == self.name else replace(self, name=name, bins=bins, in_studies=False)


def family(metric: Metric) -> str:
    """The name without the number of bins."""
    return metric.name if metric.bins is None else metric.name.removesuffix(f"_{metric.bins}")


METRICS: dict[str, Metric] = {}  # in the order in which a report lists them


def register(metric: Metric) -> Metric:
    """Add a metric to all reports made from now on."""
    if not metric.name.isidentifier():
        raise CiglError(f"{metric.name!r} can't name a metric: reports have it as an attribute.")
    if family(metric) in map(family, METRICS.values()):
        raise CiglError(f"there is a metric {family(metric)!r} already: choose another name.")
    METRICS[metric.name] = metric
    return metric


def metric(name: str) -> Metric:
    """A metric by its name in a report.

    >>> metric("ece_10").title, metric("ece_10").bins, metric("accuracy").better
    ('ECE', 10, 'higher')
    """
    if name in METRICS:
        return METRICS[name]
    start, _, bins = name.rpartition("_")
    for each in METRICS.values():
        if each.bins is not None and family(each) == start and bins.isdecimal():
            return each.with_bins(int(bins))
    raise unknown("metric", name, METRICS)


def listed(bins: int) -> Iterator[Metric]:
    """What a report with so many bins lists.

    >>> [each.name for each in listed(20) if family(each) == "ece"]
    ['ece_15', 'ece_20', 'ece_10']
    """
    for each in list(METRICS.values()):
        if each.bins is None:
            yield each
        else:
            yield from map(each.with_bins, dict.fromkeys(number or bins for number in each.listed_with))


register(Metric("accuracy", "Accuracy", MeanOf(lambda given: given.samples.correct), better="higher", unit="%",
                scale=100, decimals=2, streamed=lambda sums: sums.hits.sum() / sums.n, in_studies=True, is_share=True,
                about="how often the most probable class is the right one"))  # fmt: skip
register(Metric("top5", "Top-5 accuracy", MeanOf(lambda given: given.samples.top5), better="higher", unit="%",
                scale=100, decimals=2, is_share=True,
                about="how often the right class is among the five most probable"))  # fmt: skip
register(Metric("nll", "NLL", MeanOf(lambda given: given.samples.nll),
                streamed=lambda sums: sums.nll.sum() / sums.n, in_studies=True,
                about="negative log-likelihood: the mean of -log(probability of the right class)"))  # fmt: skip
register(Metric("brier", "Brier score", MeanOf(lambda given: given.samples.brier),
                streamed=lambda sums: sums.brier.sum() / sums.n, in_studies=True,
                about="squared error of the probabilities, from 0 (perfect) to 2"))  # fmt: skip
register(Metric("gap", "Confidence − accuracy", MeanOf(lambda given: given.samples.confidence - given.samples.correct),
                better="zero", streamed=lambda sums: sums.gaps.sum() / sums.n, in_studies=True, is_share=True,
                about="mean confidence minus accuracy: above 0 over-confident, below 0 under-confident"))  # fmt: skip
register(Metric("ece_15", "ECE", OverBins(expected_error), bins=BINS, listed_with=(BINS, ASKED, 10),
                interval=calibration_interval, biased=True, floor="exact", streamed=expected_error,
                in_studies=True, is_share=True,
                about="expected calibration error: the mean of |confidence - accuracy| over bins"))  # fmt: skip
register(Metric("ece_mass_15", "ECE, equal mass", OverBins(expected_error, "mass"), bins=BINS, listed_with=(BINS,),
                interval=calibration_interval, biased=True, floor="exact", is_share=True,
                about="ECE over bins that hold equally many samples"))  # fmt: skip
register(Metric("ece_classwise_15", "Classwise ECE", OverSamples(Classwise), bins=BINS,
                interval=many_cells_interval, biased=True, floor="drawn", is_share=True,
                about="ECE of the probability of each class, averaged over classes"))  # fmt: skip
register(Metric("mce_15", "MCE", OverBins(maximum_error), bins=BINS,
                interval=calibration_interval, biased=True, floor="drawn", streamed=maximum_error, is_share=True,
                about="maximum calibration error: that of the worst bin, mostly noise in small bins"))  # fmt: skip
register(Metric("l2_debiased_15", "Debiased L2 error", OverBins(debiased_square), bins=BINS,
                interval=calibration_interval, biased=True, squared=True, is_share=True,
                about="root mean square calibration error, corrected for its bias"))  # fmt: skip
register(Metric("aurc", "AURC", OverSamples(lambda given, bins: RiskCoverage(given)), is_share=True,
                about="area under the risk-coverage curve: the mean error rate when the least confident predictions "
                      "are left out one by one"))  # fmt: skip
