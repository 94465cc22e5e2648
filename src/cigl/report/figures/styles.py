"""How each method looks, the same in every figure: a colour, a marker (filled or open) and a dash.

Colours help, but nothing depends on them: no two methods of a study share marker, filling and dash.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, product
from typing import NamedTuple


class Look(NamedTuple):
    color: str  # a key of COLORS
    marker: str  # a key of MARKERS
    filled: bool
    dash: str  # a key of DASHES

    @property
    def without_color(self) -> tuple[str, bool, str]:
        return self.marker, self.filled, self.dash


# Okabe & Ito, for figures on white paper; the page has its own shades for light and dark (assets/charts.css).
COLORS = {
    "blue": "#0072B2", "red": "#D55E00", "sky": "#56B4E9", "green": "#009E73", "pink": "#CC79A7", "orange": "#E69F00",
    "grey": "#777777", "ink": "#000000",
}  # fmt: skip
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "up": "^", "down": "v", "left": "<", "right": ">", "plus": "P",
    "cross": "X", "star": "*", "pentagon": "p",
}  # fmt: skip
# Lengths of strokes and gaps, in widths of the line.
DASHES: dict[str, tuple[float, ...]] = {"solid": (), "dashed": (4, 1.5), "dotted": (1, 1.2), "mixed": (5, 1.2, 1, 1.2)}

_CATALOGUED = {
    "dense": Look("ink", "square", False, "dashed"),
    "rigl": Look("blue", "circle", True, "solid"),
    "cigl": Look("red", "diamond", True, "solid"),
    "rigl-annealed": Look("sky", "up", False, "dashed"),
    "rigl-bn": Look("sky", "down", False, "dotted"),
    "rigl-mixup": Look("orange", "left", True, "dashed"),
    "rigl-ls": Look("grey", "right", True, "dashed"),
    "rigl-wdp": Look("green", "square", True, "dashed"),
    "rigl-wdp-pw": Look("green", "plus", True, "dotted"),
    "rigl-mcdp": Look("pink", "cross", True, "dashed"),
    "set": Look("green", "circle", False, "mixed"),
    "sup-tickets": Look("ink", "pentagon", True, "mixed"),
    "cigl-pw": Look("pink", "diamond", False, "mixed"),
    "cigl-pw-pilot": Look("green", "star", True, "mixed"),
    "cigl-mixup": Look("orange", "left", False, "mixed"),
    "cigl-no-rm": Look("sky", "up", True, "mixed"),
    "cigl-no-wma": Look("grey", "down", True, "mixed"),
    "cigl-mask-10": Look("red", "right", False, "dotted"),
}


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Of all methods of a study; those that the catalogue does not know get what is left, in their order.

    >>> looks(["rigl", "mine"])["mine"]
    Look(color='green', marker='square', filled=True, dash='dashed')
    """
    names = list(dict.fromkeys(methods))
    found = {name: _CATALOGUED[name] for name in names if name in _CATALOGUED}
    taken = {(look.marker, look.filled) for look in found.values()}
    shapes = list(product((True, False), MARKERS))
    # Shapes that no other method has come first; a study of more than 22 methods repeats them with other dashes.
    free = [(marker, filled) for filled, marker in shapes if (marker, filled) not in taken]
    again = [(marker, filled) for filled, marker in shapes]
    colors, dashes = cycle(("green", "pink", "orange", "sky", "grey", "ink")), cycle(("dashed", "dotted", "mixed"))
    pool = [(marker, filled, next(dashes)) for marker, filled in free]
    pool += [(marker, filled, dash) for dash in DASHES for marker, filled in again]
    used = {look.without_color for look in found.values()}
    unused = cycle([shape for shape in dict.fromkeys(pool) if shape not in used])
    for name in names:
        if name not in found:
            marker, filled, dash = next(unused)
            found[name] = Look(next(colors), marker, filled, dash)
    return found
