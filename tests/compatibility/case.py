"""One line of the table in the docs: something that is tried with cigl, and how that ends."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    outcome: Literal["works", "refused"]
    how: str
