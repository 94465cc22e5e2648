"""A report as people read it: a verdict in a sentence, a table in percent, and what its terms mean."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cigl.calibrate.registry import metric
from cigl.common.text import count, percent

if TYPE_CHECKING:
    from cigl.calibrate.reports.classification import Report

FEW = 30  # samples, below which no bootstrap can be believed
GUIDE = "docs/calibration.md"


def verdict(report: Report) -> str:
    """How often the model is right, whether it is over- or under-confident, and how much of that is noise.

    >>> from cigl.calibrate.reports.classification import report
    >>> print(wrapped(verdict(report(probabilities=[[0.9, 0.1]] * 1000, labels=[0] * 700 + [1] * 300))))
    Right in 70.0 % of cases, 20.0 points over-confident. Calibration error (ECE)
    20.0 %; a perfectly calibrated model would show 0.8 % here.
    """
    ece, gap = report.ece, report.gap
    right = f"Right in {percent(report.accuracy, 1)} of cases"
    error = f"Calibration error (ECE) {percent(ece, 1)}"
    perfect = f"a perfectly calibrated model would show {percent(ece.floor or 0.0, 1)} here"
    if report.n < FEW:
        return f"{right}; {samples(report.n)} are too few to judge the calibration, or to believe these intervals."
    if ece.low <= 0:
        return f"{right}; no miscalibration found with {samples(report.n)}. {error}; {perfect}."
    if gap.low <= 0 <= gap.high:
        return f"{right}, over-confident on some inputs and under-confident on others. {error}; {perfect}."
    return f"{right}, {abs(100 * gap):.1f} points {'over' if gap > 0 else 'under'}-confident. {error}; {perfect}."


def wrapped(text: str, indent: int = 0) -> str:
    """Lines of at most 80 characters; a number stays with its percent sign."""
    return textwrap.fill(text.replace(" %", "\0%"), 80, subsequent_indent=" " * indent).replace("\0", " ")


def samples(n: int) -> str:
    return count(n, "sample")


HEAD = ("", "value", "low", "high", "noise floor")


def basis(report: Report) -> str:
    """What the numbers of a report rest on."""
    return (
        f"{samples(report.n)}, {report.classes} classes; 95 % intervals from {report.resamples:,} bootstrap resamples"
    )


def rows(report: Report) -> list[tuple[str, ...]]:
    """The cells under ``HEAD``, a row per metric."""
    return [
        (name, *(cell(name, x) for x in (e, e.low, e.high)), "" if e.floor is None else cell(name, e.floor))
        for name, e in report.metrics.items()
    ]


def table(report: Report, names: Mapping[str, str] | None = None) -> list[str]:
    """A line per metric, or for those that ``names`` has, which are what people call them."""
    found = [(names[name], *cells) for name, *cells in rows(report) if name in names] if names else rows(report)
    lines = [f"{name:<20}{a:>10}{b:>10}{c:>10}{d:>13}".rstrip() for name, a, b, c, d in (HEAD, *found)]
    return [basis(report), *lines]


# What a person looks at first.
FIRST = {"accuracy": "accuracy", "nll": "log loss (NLL)", "brier": "Brier score", "ece_15": "calibration (ECE)"}


def printed(report: Report, every: bool = False, explain: bool = False) -> str:
    """As commands show a report: the verdict and four metrics, or every one."""
    names = {name: name for name in report.metrics} if every else FIRST
    hint = f"{'' if every else '--all shows every metric, '}--explain says what the numbers mean"
    lines = [wrapped(report.verdict), "", *table(report, names)]
    return "\n".join([*lines, "", explanation(names)] if explain else [*lines, f"({hint})"])


def cell(name: str, value: float) -> str:
    """A metric's value: in percent if it is a share.

    >>> cell("ece_15", 0.0483), cell("nll", 0.8368), cell("gap", -0.00381), cell("nll", 0.000381)
    ('4.83 %', '0.8368', '-0.38 %', '0.000381')
    """
    if metric(name).is_share:
        return percent(value, 2)
    return f"{value:.3g}" if 0 < abs(value) < 0.001 or abs(value) >= 1e6 else f"{value:.4f}"


def explanation(names: Mapping[str, str]) -> str:
    """What the metrics of a table mean, under the names that it has for them, a line or two each."""
    about = {shown: _about(name) for name, shown in names.items()} | {
        "low, high": "the 95 % interval: how far off the value may be because the test set is finite",
        "noise floor": "what a perfectly calibrated model with the same probabilities would show on this test set",
    }
    lines = [wrapped(f"  {name:<17} {text}", 20) for name, text in about.items() if text]
    return "\n".join(["What the numbers mean:", *lines, f"More in the calibration guide, {GUIDE}."])


def _about(name: str) -> str:
    found = metric(name)
    return found.about + (f" ({found.bins} bins)" if found.about and found.bins else "")
