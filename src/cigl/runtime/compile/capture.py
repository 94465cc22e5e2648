"""A model's operations as a graph, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from cigl.runtime.compile.inputs import Signature


@dataclass
class Capture:
    """``structure`` is torch's TreeSpec of the output where the graph returns a flat list."""

    graph: fx.Graph
    signature: Signature
    structure: Any = None
    notes: list[str] = field(default_factory=list)


class Captured(nn.Module):
    """A model that is a graph already."""

    def capture(self) -> Capture:
        raise NotImplementedError
