"""One line of the compatibility table: what is combined with cigl, and what comes of it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    outcome: Literal["works", "refused"]
    how: str
