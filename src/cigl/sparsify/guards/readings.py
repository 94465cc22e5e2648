"""Numbers on a device that say whether all is well: read by the host without waiting for them.

On the CPU there is nothing to wait for, and they are looked at at once. On a GPU a read stops the host until all that
was launched has run. So a copy of what was asked is started after the steps 1, 2, 4, 8 and so on, and looked at in the
first step in which it has arrived; a topology round and a result wait for what is still missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Answer = Callable[[list[int]], None]
_MANY = 64  # questions, after which a copy is started in any step


class Readings:
    """Questions to devices, with what is to be done when the answers are here."""

    def __init__(self) -> None:
        self._asked: list[tuple[Tensor, Answer]] = []
        self._under_way: tuple[Tensor, Any, list[tuple[Tensor, Answer]]] | None = None

    def ask(self, numbers: Tensor, answer: Answer) -> None:
        """``numbers`` are whole ones; ``answer`` is called with them, and may warn or raise."""
        numbers = numbers.reshape(-1).to(torch.int64)
        if numbers.is_cpu:
            answer(numbers.tolist())
        else:
            self._asked.append((numbers, answer))

    def step_ended(self, step: int) -> None:
        """Look at what has arrived, and start another copy where it is time."""
        if self._under_way is not None and self._under_way[1].query():
            (copy, _, asked), self._under_way = self._under_way, None
            _answer(asked, copy)
        is_time = step & step - 1 == 0 or len(self._asked) >= _MANY
        if self._asked and is_time and self._under_way is None:
            numbers = torch.cat([asked for asked, _ in self._asked])
            copy = numbers.to("cpu", non_blocking=True)  # into pinned memory
            event = torch.get_device_module(numbers.device).Event()
            event.record()
            self._under_way, self._asked = (copy, event, self._asked), []

    def read(self) -> None:
        """Wait for all answers, once."""
        asked, self._asked = self._asked, []
        if self._under_way is not None:
            asked, self._under_way = [*self._under_way[2], *asked], None
        if asked:
            _answer(asked, torch.cat([numbers for numbers, _ in asked]))


def _answer(asked: list[tuple[Tensor, Answer]], numbers: Tensor) -> None:
    parts = numbers.cpu().split([question.numel() for question, _ in asked])
    for (_, answer), part in zip(asked, parts, strict=True):
        answer(part.tolist())
