"""Several numbers, or one with its sign, as a report shows them."""

from __future__ import annotations

from collections.abc import Sequence


def percents(sparsities: Sequence[float]) -> str:
    """
    >>> percents([0.8, 0.999])
    '80, 99.9 %'
    """
    return ", ".join(f"{100 * sparsity:.6g}" for sparsity in sparsities) + " %"


def signed(value: float, decimals: int) -> str:
    """
    >>> signed(-0.5, 2), signed(0.0, 1)
    ('−0.50', '+0.0')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def span(values: Sequence[float], form: str) -> str:
    """
    >>> span([1.2, -0.3], "{:+.1f}"), span([2.0], "{:.0f}")
    ('−0.3 to +1.2', '2')
    """
    low, high = (form.format(value).replace("-", "−") for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
