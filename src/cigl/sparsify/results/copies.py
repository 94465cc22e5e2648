"""Copies of an attached model: nothing of this package acts in them, and what ``finalize`` returns holds none of it."""

from __future__ import annotations

from torch import nn

from cigl.sparsify.loop.absent import Absent
from cigl.sparsify.loop.binding import remove_hooks


def make_plain(model: nn.Module) -> None:
    """Take what is left of this package out of a copy."""
    remove_hooks(model)
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, Absent)]:
            del vars(module)[name]
