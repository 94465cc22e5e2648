"""How many weights each layer keeps: uniform, ER and ERK, with exact totals.

ER (Mocanu et al. 2018) gives a layer a density in proportion to (in + out) / (in * out); ERK (Evci et
al. 2020, the paper's choice) counts the kernel's sides too: sum(shape) / prod(shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cigl.errors import CiglError, unknown

Shape = Sequence[int]

LAWS: dict[str, Callable[[Shape], float]] = {
    "uniform": lambda shape: 1.0,
    "er": lambda shape: sum(shape[:2]) / math.prod(shape[:2]),
    "erk": lambda shape: sum(shape) / math.prod(shape),
}


def allocate(
    shapes: Mapping[str, Shape],
    sparsity: float,
    law: str = "erk",
    fixed: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """The number of ones in each layer's mask; they sum to ``round((1 - sparsity) * n)`` exactly.

    ``fixed`` gives densities that the user has set for single layers; the others share what is left.

    >>> allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "uniform")
    {'a': 20, 'b': 80}
    >>> allocate({"a": (10, 10), "b": (40, 10)}, 0.8, "erk")
    {'a': 29, 'b': 71}
    """
    if law not in LAWS:
        raise unknown("distribution", law, LAWS)
    fixed = fixed or {}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = round((1 - sparsity) * sum(sizes.values()))
    counts = {name: max(1, round(density * sizes[name])) for name, density in fixed.items()}
    free = {name: size for name, size in sizes.items() if name not in fixed}
    rest = total - sum(counts.values())
    if rest < 0 or rest > sum(free.values()):
        raise CiglError(
            f"the densities set in layers={dict(fixed)} keep {sum(counts.values())} weights, but sparsity "
            f"{sparsity} asks for {total} in all, and the other layers can hold 0 to {sum(free.values())}: "
            "change the densities or the sparsity."
        )
    counts |= _share(free, {name: LAWS[law](shapes[name]) for name in free}, rest)
    return {name: counts[name] for name in shapes}


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
    # Largest remainders, ties to the earlier layer; several rounds only where layers are at a bound.
    while (missing := total - sum(counts.values())) != 0:
        sign = 1 if missing > 0 else -1
        can = [n for n in sizes if (counts[n] < sizes[n] if sign > 0 else counts[n] > floor)]
        can.sort(key=lambda name: sign * (counts[name] - ideal[name]))
        for name in can[: abs(missing)]:
            counts[name] += sign
    return counts
