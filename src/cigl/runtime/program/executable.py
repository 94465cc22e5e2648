"""Steps made ready for the kernels: layout, places in the arena, offsets of the non-zeros."""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cigl.errors import CiglError
from cigl.runtime.compile.operations import Pair
from cigl.runtime.program import library
from cigl.runtime.program.interface import ProgramStruct, StepStruct, View
from cigl.runtime.program.layout import Layout, up
from cigl.runtime.program.memory import Arena, Place
from cigl.runtime.program.packed import Packed
from cigl.runtime.program.steps import Kind, Step, Value

_NOWHERE = View(-1, 0, 0, 0, 0, 0)


class Executable:
    """Steps, ready to run on ``images`` with ``threads``."""

    def __init__(
        self, inputs: Sequence[Value], steps: Sequence[Step], outputs: Sequence[Value], images: int, threads: int
    ):
        # an input that is flattened is read as a row: the caller's memory is in that order already
        rows = {step.out: step.x for step in steps if step.kind == Kind.FLATTEN and step.x in inputs}
        steps = [step for step in steps if step.out not in rows]
        values = [*outputs, *(value for step in steps for value in (step.x, step.out))]
        self._isa, self._layout = _vectors(images, [value.shape for value in values])
        self._arena = Arena(self._layout)
        self._owned: list[np.ndarray[Any, Any]] = []  # what the structures point to
        self._packed: list[Packed] = []
        self._places: dict[Value, Place] = {}
        self._paddings = self._wanted_paddings(steps)
        self._structs: list[StepStruct] = []
        self.made: list[Value | int] = []  # by each structure: a value, or the output of this number

        self._assemble(inputs, rows, steps, outputs)
        reach = max((step.packed.kernel[1] + step.stride[1] for step in steps if step.packed), default=0)
        arena = up(self._arena.size + 4 * self._layout.width + reach, 16)  # vectors may reach past the last row's end
        blocks = -(-images // self._layout.block)
        self.floats = arena * (threads if blocks >= threads else 1)
        count = len(self._structs)
        self._array = (StepStruct * count)(*self._structs)
        self._program = ProgramStruct(
            self._array, count, images, self._layout.lanes, self._layout.spread, arena, threads
        )

    @property
    def bytes(self) -> int:
        return 4 * self.floats + ctypes.sizeof(self._array) + sum(each.nbytes for each in self._owned)

    def run(
        self, arena: Tensor, inputs: Sequence[Tensor], outputs: Sequence[Tensor], timed: bool = False
    ) -> list[float]:
        """Run all images, and return the seconds that each structure took, if ``timed``."""
        sources = (ctypes.c_void_p * len(inputs))(*(each.data_ptr() for each in inputs))
        targets = (ctypes.c_void_p * len(outputs))(*(each.data_ptr() for each in outputs))
        seconds = (ctypes.c_double * len(self._structs))() if timed else None
        program = ctypes.byref(self._program)
        library.get().cigl_run(self._isa.encode(), program, arena.data_ptr(), sources, targets, seconds)
        return list(seconds or [])

    @staticmethod
    def _wanted_paddings(steps: Sequence[Step]) -> dict[Value, Pair]:
        wanted: dict[Value, Pair] = defaultdict(lambda: (0, 0))
        for step in steps:
            if step.kind == Kind.CONV:
                old = wanted[step.x]
                wanted[step.x] = (max(old[0], step.padding[0]), max(old[1], step.padding[1]))
        return wanted

    def _splits(self, step: Step) -> bool:
        """Whether a strided convolution needs its input's pixels sorted: with pixels in a vector, it can't skip any."""
        return self._layout.lanes == 1 and step.kind == Kind.CONV and step.stride != (1, 1)

    def _assemble(
        self, inputs: Sequence[Value], rows: Mapping[Value, Value], steps: Sequence[Step], outputs: Sequence[Value]
    ) -> None:
        uses = Counter([value for step in steps for value in step.reads()] + list(outputs))
        for value in uses:
            source = value if value in inputs else rows.get(value)
            if source is not None:
                outside = View(inputs.index(source), 0, 0, *_sizes(value.shape))
                self._append(Kind.LOAD, source, in_=outside, out=self._take(value))
        for step in steps:
            self._assemble_step(step)
            uses.subtract(step.reads())
            for value in {*step.reads(), *step.writes()}:
                if not uses[value]:
                    self._release(value)
        for number, value in enumerate(outputs):
            outside = View(number, 0, 0, *_sizes(value.shape))
            self._append(Kind.STORE, number, in_=self._places[value].view, out=outside)

    def _assemble_step(self, step: Step) -> None:
        place = self._places[step.x]
        if step.kind == Kind.FLATTEN and step.x.shape[1:] == (1, 1) and self._layout.lanes > 1:
            self._places[step.out] = place  # it lies there in the right order
            return
        fields: dict[str, Any] = {
            "relu": step.relu,
            "add": self._places[step.add].view if step.add else _NOWHERE,
            "out": self._take(step.out) if step.keep else View(-1, 0, 0, *_sizes(step.out.shape)),
            "normed": self._take(step.normed) if step.normed else _NOWHERE,
            "kernel": step.kernel,
            "stride": step.stride,
            "padding": step.padding,
            "count_padding": step.kernel[0] * step.kernel[1] if step.count_padding else 0,
            "scale": self._own(step.scale),
            "shift": self._own(step.shift),
        }
        made = step.normed or step.out
        if step.packed is None:
            self._append(step.kind, made, in_=place.view, **fields)
        elif self._splits(step):
            parts = self._split(step, step.packed, place.view)
            fields |= {"stride": (1, 1), "padding": (0, 0)} | self._weights(step, step.packed, parts.view)
            self._append(Kind.CONV, made, in_=parts.view, **fields)
            self._arena.give_back(parts)
        else:
            fields |= self._weights(step, step.packed, place.view)
            self._append(Kind.CONV if self._layout.lanes > 1 else step.kind, made, in_=place.view, **fields)

    def _split(self, step: Step, packed: Packed, x: View) -> Place:
        """Sort a strided convolution's input by what its taps see."""
        phases = _phases(step, packed)
        _, height, width = step.out.shape
        channels = x.channels * phases[0] * phases[1]
        height += (packed.kernel[0] - 1) // step.stride[0]
        width += (packed.kernel[1] - 1) // step.stride[1]
        parts = self._arena.take((channels, height, width), (0, 0))
        window = {"kernel": phases, "stride": step.stride, "padding": step.padding}
        self._append(Kind.SPLIT, step.normed or step.out, in_=x, out=parts.view, **window)
        return parts

    def _weights(self, step: Step, packed: Packed, x: View) -> dict[str, Any]:
        """Pointers to the non-zeros and to the offsets of the inputs that they multiply."""
        c, ky, kx = np.indices((packed.inputs, *packed.kernel), dtype=np.int64)
        if self._splits(step):
            phases, stride = _phases(step, packed), step.stride
            c = (c * phases[0] + ky % stride[0]) * phases[1] + kx % stride[1]
            offsets = c * x.channel + ky // stride[0] * x.row + kx // stride[1]
        else:
            y, x_ = step.padding
            offsets = c * x.channel + (ky - y) * x.row + (kx - x_) * self._layout.lanes
        if np.abs(offsets).max() >= 1 << 31:
            raise CiglError(f"an input of shape {step.x.shape} is too large for the sparse kernels: run it dense.")
        self._packed.append(packed)
        return {
            "blocks": packed.blocks,
            "rows": packed.rows.ctypes.data,
            "offsets": self._own(offsets.reshape(-1).astype(np.int32)[packed.positions]),
            "values": packed.values.ctypes.data,
            "bias": None if packed.bias is None else packed.bias.ctypes.data,
        }

    def _take(self, value: Value) -> View:
        self._places[value] = self._arena.take(value.shape, self._paddings[value])
        return self._places[value].view

    def _release(self, value: Value) -> None:
        place = self._places.pop(value)
        if place not in self._places.values():
            self._arena.give_back(place)

    def _own(self, array: np.ndarray[Any, Any] | None) -> int | None:
        if array is None:
            return None
        self._owned.append(array)
        return array.ctypes.data

    def _append(self, kind: Kind, made: Value | int, **fields: Any) -> None:
        struct = StepStruct(kind=kind, add=_NOWHERE, normed=_NOWHERE)
        for name, value in fields.items():
            setattr(struct, name, value)
        self._structs.append(struct)
        self.made.append(made)


def _vectors(images: int, shapes: Sequence[tuple[int, ...]]) -> tuple[str, Layout]:
    """The instruction set and its layout; for pixels in vectors a narrower one is used, as rows are often short."""
    isa = library.isa()
    layout = Layout.choose(images, library.lanes(isa), shapes)
    if isa == "avx512" and layout.lanes == 1 and not library.forced():
        return "avx2", Layout.choose(images, library.lanes("avx2"), shapes)
    return isa, layout


def _phases(step: Step, packed: Packed) -> Pair:
    """How many of a stride's rows and columns a kernel sees."""
    return min(step.stride[0], packed.kernel[0]), min(step.stride[1], packed.kernel[1])


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = shape if len(shape) == 3 else (shape[0], 1, 1)
    return channels, height, width
