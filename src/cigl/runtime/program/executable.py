"""Steps made ready for the kernels: layout, places in the arena, offsets of the non-zeros."""

from __future__ import annotations

import ctypes
import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.runtime.network.operations import ACTIVATIONS, Pair, multiply_adds
from cigl.runtime.program import library
from cigl.runtime.program.interface import ProgramStruct, StepStruct, View
from cigl.runtime.program.layout import Layout, up
from cigl.runtime.program.memory import Arena, Place
from cigl.runtime.program.packed import Packed, Shared
from cigl.runtime.program.sharing import Home, homes
from cigl.runtime.program.steps import Kind, Step, Value

_NOWHERE = View(-1, 0, 0, 0, 0, 0)
# Vector operations below which a second thread costs more than it brings: of a program, because its threads have to be
# woken up, which takes longer if they sleep instead of spinning; of a step, if threads share each.
_PROGRAM = 500_000 if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else 30_000
_STEP = 2_000
_FLOATS = 4  # of a vector, per output channel side by side: TOGETHER in kernels/conv.h
_SHARED = {4: 0.12, 2: 0.5}  # density from which several channels side by side are faster than one
_WIDER = 0.75  # of the vectors, if they are twice as wide: beyond that, rows are too short for them
_NUMBERS = {name: number for number, name in enumerate(("", *ACTIVATIONS))}


class Executable:
    """Steps, ready to run on ``images`` with ``threads``."""

    def __init__(
        self, inputs: Sequence[Value], steps: Sequence[Step], outputs: Sequence[Value], images: int, threads: int
    ):
        # an input that is flattened is read as a row: the caller's memory is in that order already
        rows = {step.out: step.x for step in steps if step.kind == Kind.FLATTEN and step.x in inputs}
        steps = [step for step in steps if step.out not in rows]
        self._isa, self._layout = vectors(images, [value.shape for value in (*outputs, *(step.out for step in steps))])
        self._arena = Arena(self._layout)
        self._owned: list[np.ndarray[Any, Any]] = []  # what the structures point to
        self._packed: list[Packed] = []
        self._homes = homes(steps, self._layout.lanes > 1)
        self._places: dict[Value, Place] = {}  # of whole values
        self._paddings = self._wanted_paddings(steps)
        self._structs: list[StepStruct] = []
        self.made: list[Value | int] = []  # by each structure: a value, or the output of this number

        self._assemble(inputs, rows, steps, outputs)
        reach = max((_extent(step, step.packed)[1] + step.stride[1] for step in steps if step.packed), default=0)
        arena = up(self._arena.size + 4 * self._layout.width + reach, 16)  # vectors may reach past the last row's end
        blocks = -(-images // self._layout.block)
        threads = threads if self._is_worth_threads(steps, images, blocks >= threads) else 1
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

    def _is_worth_threads(self, steps: Sequence[Step], images: int, apart: bool) -> bool:
        """Whether threads gain more than they lose by waiting, for whole images or for each step of them."""
        work = images * sum(map(_work, steps)) / self._layout.width
        return work >= _PROGRAM and (apart or work >= _STEP * len(steps))

    def _home(self, value: Value) -> Home:
        return self._homes.get(value, Home(value, 0))

    def _wanted_paddings(self, steps: Sequence[Step]) -> dict[Value, Pair]:
        wanted: dict[Value, Pair] = defaultdict(lambda: (0, 0))
        for step in steps:
            if step.kind == Kind.CONV:
                whole = self._home(step.x).whole
                old = wanted[whole]
                wanted[whole] = (max(old[0], step.padding[0]), max(old[1], step.padding[1]))
        return wanted

    def _splits(self, step: Step) -> bool:
        """Whether a strided convolution needs its input's pixels sorted: with pixels in a vector, it can't skip any.

        A depthwise one skips every second by itself, as it reads each pixel but a few times.
        """
        strided = self._layout.lanes == 1 and step.kind == Kind.CONV and step.stride != (1, 1)
        depthwise = step.groups == step.x.shape[0] and step.stride[1] <= 2
        return strided and not depthwise and not self._is_dot(step)

    def _is_dot(self, step: Step) -> bool:
        """Whether a layer has a single image and pixel as its result: no vector could hold more than one number."""
        single = step.out.shape[1:] == (1, 1) and step.normed is None
        return self._layout.lanes == 1 and (step.kind == Kind.DOT or (step.kind == Kind.CONV and single))

    def _assemble(
        self, inputs: Sequence[Value], rows: Mapping[Value, Value], steps: Sequence[Step], outputs: Sequence[Value]
    ) -> None:
        reads = Counter([value for step in steps for value in step.reads()] + list(outputs))
        left: Counter[Value] = Counter()  # reads of a whole value and of all that lies in it
        for value, count in reads.items():
            left[self._home(value).whole] += count
        for value in reads:
            source = value if value in inputs else rows.get(value)
            if source is not None:
                outside = View(inputs.index(source), 0, 0, *_sizes(value.shape))
                self._append(Kind.LOAD, source, in_=outside, out=self._view(value))
        for step in steps:
            self._assemble_step(step)
            left.subtract(self._home(value).whole for value in step.reads())
            for value in {*step.reads(), *step.writes()}:
                whole = self._home(value).whole
                if not left[whole] and whole in self._places:
                    self._arena.give_back(self._places.pop(whole))
        for number, value in enumerate(outputs):
            outside = View(number, 0, 0, *_sizes(value.shape))
            self._append(Kind.STORE, number, in_=self._view(value), out=outside)

    def _assemble_step(self, step: Step) -> None:
        if step.parts:
            self._join(step)
            return
        if step.kind == Kind.FLATTEN and self._home(step.out) == self._home(step.x):
            return  # it lies there in the right order
        place = self._view(step.x)
        fields: dict[str, Any] = {
            "activation": _NUMBERS[step.activation],
            "add": self._view(step.add) if step.add else _NOWHERE,
            "multiplier": self._view(step.gate) if step.gate else _NOWHERE,
            "out": self._view(step.out) if step.keep else View(-1, 0, 0, *_sizes(step.out.shape)),
            "normed": self._view(step.normed) if step.normed else _NOWHERE,
            "kernel": step.kernel,
            "stride": step.stride,
            "padding": step.padding,
            "count_padding": step.kernel[0] * step.kernel[1] if step.count_padding else 0,
            "scale": self._own(step.scale),
            "shift": self._own(step.shift),
            "eps": step.eps,
        }
        made = step.normed or step.out
        if step.packed is None:
            self._append(step.kind, made, in_=place, **fields)
        elif self._splits(step):
            parts = self._split(step, step.packed, place)
            fields |= {"stride": (1, 1), "padding": (0, 0)} | self._weights(step, step.packed, parts.view)
            self._append(Kind.CONV, made, in_=parts.view, **fields)
            self._arena.give_back(parts)
        else:
            fields |= self._weights(step, step.packed, place)
            self._append(Kind.DOT if self._is_dot(step) else Kind.CONV, made, in_=place, **fields)

    def _join(self, step: Step) -> None:
        """Copy the parts that don't lie in the whole already."""
        channel = 0
        for part in step.parts:
            home, own = self._home(step.out), self._home(part)
            if own != Home(home.whole, home.channel + channel):
                out = self._view(step.out)
                out.at, out.channels = out.at + channel * out.channel, part.shape[0]
                self._append(Kind.ELEMENTWISE, step.out, in_=self._view(part), out=out)
            channel += part.shape[0]

    def _split(self, step: Step, packed: Packed, x: View) -> Place:
        """Sort a strided convolution's input by what its taps see."""
        phases = _phases(step, packed)
        _, height, width = step.out.shape
        channels = x.channels * phases[0] * phases[1]
        extent = _extent(step, packed)
        height += (extent[0] - 1) // step.stride[0]
        width += (extent[1] - 1) // step.stride[1]
        parts = self._arena.take((channels, height, width), (0, 0))
        window = {"kernel": phases, "stride": step.stride, "padding": step.padding}
        self._append(Kind.SPLIT, step.normed or step.out, in_=x, out=parts.view, **window)
        return parts

    def _weights(self, step: Step, packed: Packed, x: View) -> dict[str, Any]:
        """Pointers to the non-zeros and to the offsets of the inputs that they multiply."""
        c, ky, kx = np.indices((packed.inputs, *packed.kernel), dtype=np.int64)
        ky, kx, channel = ky * step.dilation[0], kx * step.dilation[1], x.channel
        if self._splits(step):
            phases, stride = _phases(step, packed), step.stride
            offsets = (ky % stride[0] * phases[1] + kx % stride[1]) * channel
            offsets += ky // stride[0] * x.row + kx // stride[1]
            channel *= phases[0] * phases[1]
        else:
            offsets = (ky - step.padding[0]) * x.row + (kx - step.padding[1]) * self._layout.lanes
        together = self._together(step, packed)
        sorted_ = packed.shared(together) if together > 1 else packed
        offsets = (offsets + c * channel).reshape(-1)[sorted_.positions]
        if step.groups > 1:
            output = sorted_.outputs if isinstance(sorted_, Shared) else sorted_.output
            offsets += output // (packed.outputs // step.groups) * packed.inputs * channel
        if offsets.size and np.abs(offsets).max() >= 1 << 31:
            raise CiglError(f"an input of shape {step.x.shape} is too large for the sparse kernels: run it dense.")
        self._packed.append(packed)
        return {
            "groups": step.groups,
            "blocks": sorted_.blocks,
            "together": together,
            "rows": sorted_.rows.ctypes.data,
            "firsts": sorted_.firsts.ctypes.data if isinstance(sorted_, Shared) else None,
            "offsets": self._own(offsets.astype(np.int32)),
            "values": sorted_.values.ctypes.data,
            "bias": None if packed.bias is None else packed.bias.ctypes.data,
        }

    def _together(self, step: Step, packed: Packed) -> int:
        """Output channels side by side: several, where their weights are so dense that they share many inputs."""
        together = self._layout.width // _FLOATS
        apart = step.groups > 1 and packed.outputs // step.groups % together  # they would read other channels
        # only the kernel of one channel at a time skips pixels
        skips = self._layout.lanes == 1 and step.stride[1] > 1 and not self._splits(step)
        plain = self._is_dot(step) or apart or skips or packed.density < _SHARED[together]
        return 1 if plain else together

    def _view(self, value: Value) -> View:
        """Where a value lies; the place is taken when it is first asked for."""
        home = self._home(value)
        if home.whole not in self._places:
            self._places[home.whole] = self._arena.take(home.whole.shape, self._paddings[home.whole])
        whole = self._places[home.whole].view
        at = whole.at + home.channel * whole.channel
        return View(at, whole.row, whole.channel, value.shape[0], whole.height, whole.width)

    def _own(self, array: np.ndarray[Any, Any] | None) -> int | None:
        if array is None:
            return None
        self._owned.append(array)
        return array.ctypes.data

    def _append(self, kind: Kind, made: Value | int, **fields: Any) -> None:
        struct = StepStruct(kind=kind, add=_NOWHERE, normed=_NOWHERE, multiplier=_NOWHERE, other=_NOWHERE)
        for name, value in fields.items():
            setattr(struct, name, value)
        self._structs.append(struct)
        self.made.append(made)


def vectors(images: int, shapes: Sequence[tuple[int, ...]]) -> tuple[str, Layout]:
    """The instruction set and its layout. Rows of pixels too short for wide vectors are run in narrow ones."""
    isa = library.isa()
    layout = Layout.choose(images, library.lanes(isa), shapes)
    if isa != "avx512" or layout.lanes > 1 or library.forced():
        return isa, layout
    narrow = Layout.choose(images, library.lanes("avx2"), shapes)
    saves = _row_vectors(shapes, layout.width) <= _WIDER * _row_vectors(shapes, narrow.width)
    return (isa, layout) if narrow.lanes == 1 and saves else ("avx2", narrow)


def _row_vectors(shapes: Sequence[tuple[int, ...]], width: int) -> int:
    """Vectors that rows of pixels take, of all values together."""
    return sum(channels * height * -(-columns // width) for channels, height, columns in map(_sizes, shapes))


def _work(step: Step) -> int:
    """Multiply-adds per image, or numbers written."""
    if step.packed is None:
        return math.prod(step.out.shape)
    return multiply_adds(len(step.packed.values), step.packed.outputs, step.out.shape)


def _extent(step: Step, packed: Packed) -> Pair:
    """Rows and columns that a kernel reaches over."""
    kernel, dilation = packed.kernel, step.dilation
    return dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1


def _phases(step: Step, packed: Packed) -> Pair:
    """How many of a stride's rows and columns a kernel sees."""
    extent = _extent(step, packed)
    return min(step.stride[0], extent[0]), min(step.stride[1], extent[1])


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = shape if len(shape) == 3 else (shape[0], 1, 1)
    return channels, height, width
