"""Numbers as entries of tables."""

from __future__ import annotations

from dataclasses import replace

from cigl.common.text import signed
from cigl.report.evidence.comparisons import Spread
from cigl.report.evidence.metrics import lookup
from cigl.report.evidence.paper import Printed
from cigl.report.evidence.statistics import OverSeeds
from cigl.report.tables.formats import EMPTY, Entry


def number(value: float | None, decimals: int, scale: float = 1) -> Entry:
    return EMPTY if value is None else Entry(f"{scale * value:.{decimals}f}", scale * value)


def metric_number(value: float | None, metric: str) -> Entry:
    shown = lookup(metric)
    return number(value, shown.decimals, shown.scale)


def _entry(value: float, sd: float | None, metric: str, *, sign: bool = False, digits: int | None = None) -> Entry:
    """In the metric's unit, with its standard deviation where that is known."""
    shown = lookup(metric)
    value, spread = shown.scale * value, None if sd is None else shown.scale * sd
    text = signed(value, shown.decimals) if sign else f"{value:.{shown.decimals}f}"
    more = "" if spread is None else f" ± {spread:.{shown.decimals if digits is None else digits}f}"
    return Entry(text + more, value, spread)


def mean_entry(found: OverSeeds | Spread, metric: str, runs: tuple[str, str, float]) -> Entry:
    return replace(_entry(found.value, found.seed_sd, metric), runs=runs)


def change_entry(found: OverSeeds, metric: str, runs: tuple[str, str, float]) -> Entry:
    """Bold where it is better by more than chance."""
    bold = found.value < 0 and found.excludes_zero
    return replace(_entry(found.value, found.seed_sd, metric, sign=True), bold=bold, runs=runs)


def difference_entry(found: OverSeeds | None, metric: str) -> Entry:
    """Bold where it is significantly better; what is significantly worse says so."""
    if found is None:
        return EMPTY
    shown = lookup(metric)
    value, low, high = (signed(shown.scale * x, shown.decimals) for x in (found.value, found.low, found.high))
    better = found.excludes_zero and (found.value > 0) == (shown.better == "higher")
    worse = " worse" if found.excludes_zero and not better else ""
    return Entry(f"{value} [{low}, {high}]{worse}", shown.scale * found.value, bold=better)


def paper_entry(printed: Printed | None, metric: str) -> Entry:
    if printed is None:
        return EMPTY
    return _entry(printed.mean, printed.std, metric, sign=printed.metric == "ece_change", digits=3)
