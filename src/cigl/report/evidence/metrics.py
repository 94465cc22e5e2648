"""What a report has to know about metrics beside the registry: which come first, and how headings name them.

No other module of the report lists metrics. One with ``in_studies`` is read from every run that measured it, and has a
table, a column of differences, a column per run and its rows in the data files.
"""

from __future__ import annotations

from cigl.calibrate.registry import METRICS, Metric

ECE, ACCURACY, NLL, GAP = "ece_15", "accuracy", "nll", "gap"  # what figures and captions are about
HEADLINE = (ECE, ACCURACY)  # first on the page, and with a table of intervals
SCALED = (ECE, NLL)  # these are shown after temperature scaling too, which leaves accuracy as it is
NOTES = {ECE: "15 bins of equal width."}  # below its table
_SHORT = {ACCURACY: "accuracy", "brier": "Brier"}  # in headings of differences, where the title would not do


def lookup(metric: str) -> Metric:
    return METRICS[metric]


def measured() -> list[str]:
    """The metrics that are read from runs.

    >>> measured()
    ['accuracy', 'ece_15', 'nll', 'brier', 'gap']
    """
    return _sorted((ACCURACY, ECE), [each for each in METRICS.values() if each.in_studies])


def tabulated() -> list[str]:
    """Those that have tables and columns; a signed one, of which neither more nor less is better, is in the data only.

    >>> tabulated()
    ['ece_15', 'accuracy', 'nll', 'brier']
    """
    return _sorted(HEADLINE, [each for each in METRICS.values() if each.in_studies and each.better != "zero"])


def _sorted(first: tuple[str, ...], metrics: list[Metric]) -> list[str]:
    return [*first, *(each.name for each in metrics if each.name not in first)]


def heading(metric: str) -> str:
    """
    >>> heading("accuracy"), heading("nll")
    ('Accuracy (%)', 'NLL')
    """
    shown = lookup(metric)
    return f"{shown.title} ({shown.unit})" if shown.unit else shown.title


def change_heading(metric: str) -> str:
    """
    >>> change_heading("accuracy"), change_heading("ece_15")
    ('Δ accuracy (points)', 'Δ ECE')
    """
    shown = lookup(metric)
    unit = "points" if shown.unit == "%" else shown.unit
    return f"Δ {_SHORT.get(metric, shown.title)}" + (f" ({unit})" if unit else "")


def file_name(metric: str) -> str:
    """For files: a number of bins that is the usual one is left out.

    >>> file_name("ece_15")
    'ece'
    """
    return metric.removesuffix("_15")
