"""Which dimensions of a layer's weight are inputs and which outputs: what fan-in, ER, ERK and dead units go by.

Known are torch's layers and two of Transformers', which are recognised by name: nothing is imported for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_ATTENTION = {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
_INPUTS_FIRST = {"Llama4TextExperts", "GptOssExperts"}  # experts as (experts, inputs, outputs), if they don't say it


@dataclass(frozen=True)
class UnitLayout:
    """The dimensions of a weight: (outputs, inputs, *kernel), unless a field says otherwise.

    Matrices that are stacked along the outputs are one: the gates of an LSTM, query, key and value of attention.
    """

    groups: int = 1  # of a convolution
    inputs_first: bool = False  # a transposed convolution, Transformers' Conv1D
    batched: bool = False  # the first dimension counts matrices, each with units of its own: experts
    bilinear: bool = False  # the last dimension is a second input

    def sides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of one matrix or kernel: the numbers that ER and ERK are made of."""
        return tuple(shape[1:] if self.batched else shape)

    def table(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """As groups, rows, columns and elements of a kernel: rows are outputs, or inputs where these come first."""
        rows, columns, *kernel = (shape[0] * shape[1], *shape[2:]) if self.batched else shape
        return shape[0] if self.batched else self.groups, rows, columns, prod(kernel)

    def units(self, shape: tuple[int, ...]) -> int:
        """How many output units there are."""
        groups, rows, columns, _ = self.table(shape)
        return groups * columns if self.inputs_first else rows

    def dense_fan_in(self, shape: tuple[int, ...]) -> int:
        groups, rows, columns, kernel = self.table(shape)
        return (rows // groups if self.inputs_first else columns) * kernel

    def ends(self, positions: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The output unit and the input unit that the weight at each position connects."""
        groups, rows, columns, kernel = self.table(shape)
        row = positions // (columns * kernel)
        column = row // (rows // groups) * columns + positions // kernel % columns
        return (column, row) if self.inputs_first else (row, column)

    def fans_at(self, positions: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The fan-in of each output unit and the fan-out of each input unit, where these weights are active."""
        groups, rows, columns, kernel = self.table(shape)
        outputs, inputs = self.ends(positions, shape)
        sizes = (groups * columns, rows) if self.inputs_first else (rows, groups * columns)
        fan_in, fan_out = (torch.bincount(ends, minlength=n) for ends, n in zip((outputs, inputs), sizes, strict=True))
        if self.bilinear:
            fan_out = torch.cat([fan_out, torch.bincount(positions % kernel, minlength=kernel)])
        return fan_in, fan_out


def layout_of(module: nn.Module, attribute: str, dimensions: int) -> UnitLayout | None:
    """Of a known layer's weight; None for other parameters."""
    if isinstance(module, nn.MultiheadAttention):
        return UnitLayout() if attribute in _ATTENTION else None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return UnitLayout() if attribute.startswith("weight_") else None
    if dimensions == 3 and not is_bias(attribute) and any(name.endswith("Experts") for name in of_transformers(module)):
        default = not _INPUTS_FIRST.isdisjoint(of_transformers(module))
        return UnitLayout(batched=True, inputs_first=getattr(module, "is_transposed", default))
    if attribute != "weight":
        return None
    if isinstance(module, _ConvNd):
        return UnitLayout(groups=module.groups, inputs_first=module.transposed)
    if isinstance(module, nn.Bilinear):
        return UnitLayout(bilinear=True)
    if "Conv1D" in of_transformers(module):
        return UnitLayout(inputs_first=True)
    return UnitLayout() if isinstance(module, nn.Linear) else None


def layout_on_request(dimensions: int) -> UnitLayout:
    """Of a parameter that no known layer holds: three dimensions are a batch of matrices, as experts have it."""
    return UnitLayout(batched=dimensions == 3)


def is_bias(attribute: str) -> bool:
    """Biases of experts and of attention have two and three dimensions."""
    return "bias" in attribute.split("_")


def of_transformers(module: nn.Module) -> set[str]:
    """The names of the module's classes that are Transformers' own."""
    return {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("transformers.")}
