"""Numbers as entries of tables."""

from __future__ import annotations

from cigl.report.evidence.comparisons import Spread
from cigl.report.evidence.metrics import lookup
from cigl.report.evidence.paper import Printed
from cigl.report.evidence.statistics import OverSeeds
from cigl.report.tables.formats import EMPTY, Entry
from cigl.report.tables.text import signed


def number(value: float | None, decimals: int, scale: float = 1) -> Entry:
    return EMPTY if value is None else Entry(f"{scale * value:.{decimals}f}", scale * value)


def metric_number(value: float | None, metric: str) -> Entry:
    shown = lookup(metric)
    return number(value, shown.decimals, shown.scale)


def mean_entry(found: OverSeeds | Spread, metric: str, runs: tuple[str, str, float], *, bold: bool = False) -> Entry:
    shown = lookup(metric)
    value, spread = shown.scale * found.value, None if found.seed_sd is None else shown.scale * found.seed_sd
    text = f"{value:.{shown.decimals}f}" + ("" if spread is None else f" ± {spread:.{shown.decimals}f}")
    return Entry(text, value, spread, bold, runs)


def change_entry(found: OverSeeds, metric: str, runs: tuple[str, str, float]) -> Entry:
    """Bold where it is better by more than chance."""
    shown = lookup(metric)
    value, spread = shown.scale * found.value, None if found.seed_sd is None else shown.scale * found.seed_sd
    text = signed(value, shown.decimals) + ("" if spread is None else f" ± {spread:.{shown.decimals}f}")
    return Entry(text, value, spread, found.value < 0 and found.excludes_zero, runs)


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
    shown = lookup(metric)
    value, spread = shown.scale * printed.mean, None if printed.std is None else shown.scale * printed.std
    text = signed(value, shown.decimals) if printed.metric == "ece_change" else f"{value:.{shown.decimals}f}"
    return Entry(text + ("" if spread is None else f" ± {spread:.3f}"), value, spread)
