"""How many weights each layer keeps: uniform, ER and ERK, with exact totals.

ER (Mocanu et al. 2018) gives a layer a density in proportion to (in + out) / (in * out); ERK (Evci et
al. 2020, the paper's choice) counts the kernel's sides too: sum(shape) / prod(shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cigl.common.errors import CiglError, unknown

Shape = Sequence[int]

DISTRIBUTIONS: dict[str, Callable[[Shape], float]] = {
    "uniform": lambda shape: 1.0,
    "er": lambda shape: sum(shape[:2]) / math.prod(shape[:2]),
    "erk": lambda shape: sum(shape) / math.prod(shape),
}


def allocate(
    shapes: Mapping[str, Shape],
    sparsity: float,
    distribution: str = "erk",
    fixed: Mapping[str, float] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The number of ones in each layer's mask; they sum to ``round((1 - sparsity) * n)`` exactly.

    ``fixed`` gives densities that the user has set for single layers; the others share what is left. ``sizes`` are the
    numbers of weights, where a parameter holds several matrices of that shape.

    >>> allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "uniform")
    {'a': 20, 'b': 80}
    >>> allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "erk")
    {'a': 29, 'b': 71}
    """
    if distribution not in DISTRIBUTIONS:
        raise unknown("distribution", distribution, DISTRIBUTIONS)
    fixed = fixed or {}
    sizes = sizes or {name: math.prod(shape) for name, shape in shapes.items()}
    total = round((1 - sparsity) * sum(sizes.values()))
    free = {name: size for name, size in sizes.items() if name not in fixed}
    counts = _keep_densities(sizes, fixed, total)
    if counts is None:
        kept = sum(max(1, round(density * sizes[name])) for name, density in fixed.items())
        raise CiglError(
            f"the densities set in layers={dict(fixed)} keep {kept} weights, but sparsity "
            f"{sparsity} asks for {total} in all, and the other layers can hold 0 to {sum(free.values())}: "
            "change the densities or the sparsity."
        )
    scores = {name: DISTRIBUTIONS[distribution](shapes[name]) for name in free}
    counts |= _share(free, scores, total - sum(counts.values()))
    return {name: counts[name] for name in shapes}


def _keep_densities(sizes: Mapping[str, int], fixed: Mapping[str, float], total: int) -> dict[str, int] | None:
    """The counts that the densities give, none zero; None if the other layers can't hold exactly what is left.

    Rounding alone can make them too many or too few, by at most a weight for each density: then they give way.
    """
    ideal = {name: density * sizes[name] for name, density in fixed.items()}
    counts = {name: max(1, round(value)) for name, value in ideal.items()}
    kept = sum(counts.values())
    room = sum(sizes.values()) - sum(sizes[name] for name in fixed)
    wanted = min(max(kept, total - room), total)
    low = dict.fromkeys(fixed, 1 if wanted >= len(fixed) else 0)
    return _settle(counts, ideal, low, sizes, wanted) if abs(wanted - kept) <= len(fixed) else None


def _share(sizes: Mapping[str, int], scores: Mapping[str, float], total: int) -> dict[str, int]:
    """Share ``total`` in proportion to score * size, no layer above its size, none empty if it can be."""
    floor = 1 if total >= len(sizes) else 0
    ideal = {name: float(size) for name, size in sizes.items()}
    left, open_ = float(total), set(sizes)
    while open_:  # layers that would be more than dense are dense, and the others share the rest
        scale = left / sum(scores[name] * sizes[name] for name in open_)
        full = {name for name in open_ if scale * scores[name] >= 1}
        if not full:
            ideal |= {name: scale * scores[name] * sizes[name] for name in open_}
            break
        left -= sum(sizes[name] for name in full)
        open_ -= full
    counts = {name: min(sizes[name], max(floor, math.floor(ideal[name]))) for name in sizes}
    return _settle(counts, ideal, dict.fromkeys(sizes, floor), sizes, total)


def _settle(
    counts: dict[str, int], ideal: Mapping[str, float], low: Mapping[str, int], high: Mapping[str, int], total: int
) -> dict[str, int]:
    """Up or down to ``total`` by largest remainders, ties to the earlier layer, within the bounds of each."""
    while (missing := total - sum(counts.values())) != 0:  # several rounds only where layers are at a bound
        sign = 1 if missing > 0 else -1
        can = [name for name in counts if (counts[name] < high[name] if sign > 0 else counts[name] > low[name])]
        can.sort(key=lambda name: sign * (counts[name] - ideal[name]))
        for name in can[: abs(missing)]:
            counts[name] += sign
    return counts
