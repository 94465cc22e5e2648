"""A subgraph of a network in training: its forward and its backward as one call into the kernels each."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.runtime.program import library
from cigl.runtime.program.interface import ProgramStruct, StepStruct
from cigl.runtime.program.layout import Layout, up, vectors_of
from cigl.runtime.training.assembly import Assembly
from cigl.runtime.training.backward import Backward
from cigl.runtime.training.bands import set_bands
from cigl.runtime.training.forward import assemble_forward
from cigl.runtime.training.nodes import Node, Value, Weights
from cigl.runtime.training.patterns import address

_LARGE = 1 << 24  # bytes
FLOAT = torch.float32  # of the kernels, whatever torch's default is; a test builds them in double


class TrainingProgram:
    """For ``images`` of one shape. It holds one batch's activations from ``forward`` to ``backward``.

    Parameters are read where the user's model has them. Of a weight only the entries of its pattern are read, and only
    they get a gradient.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        images: int,
        threads: int,
    ):
        self.images, self.inputs, self.outputs = images, list(inputs), list(outputs)
        self._isa = library.isa()
        width = library.lanes(self._isa)
        flat = all(len(value.shape) == 1 for value in (*inputs, *(node.out for node in nodes)))
        layout = Layout(width, width, vectors_of(images, width) if flat else 1)
        self._assembly = assembly = Assembly(nodes, inputs, outputs, images, layout)
        assemble_forward(assembly, nodes, inputs, outputs)
        self._middle = len(assembly.steps)
        back = Backward(assembly, nodes, inputs, outputs)
        set_bands(assembly.steps, assembly.reaches)
        self._transposed, self.gradient_inputs = back.transposed, back.inputs
        self._summed, self._steps_of_sums = back.summed, back.steps_of_sums
        for weights in assembly.values:
            weights.pattern.forget()
        reach = 4 * width + 16  # a vector may reach past the last row's end
        arena, kept = up(assembly.scratch.size + reach, 16), up(assembly.kept.size, 16)
        self._memory = _zeros(assembly.blocks * kept + threads * arena)
        count = len(assembly.steps)
        self._steps = (StepStruct * count)(*assembly.steps)
        self._struct = ProgramStruct(
            self._steps, count, images, width, layout.spread, arena, threads, kept, assembly.groups
        )

    @property
    def bytes(self) -> int:
        return self._memory.nbytes + self._assembly.arrays.bytes + ctypes.sizeof(self._steps)

    def forward(self, inputs: Sequence[Tensor], timed: bool = False) -> tuple[list[Tensor], list[float]]:
        """The outputs of a batch, and the seconds of each step if ``timed``. Batch norms move their statistics."""
        assembly = self._assembly
        for weights, values in assembly.values.items():
            weights.pattern.pack(weights.weight, values)
        for number, weights in assembly.biases:
            assert weights.bias is not None
            self._steps[number].bias = weights.bias.data_ptr()
        for state in assembly.norms.values():
            module, struct = state.module, state.struct
            for name in ("weight", "bias", "running_mean", "running_var"):
                tensor = getattr(module, name)
                setattr(struct, name, None if tensor is None else tensor.data_ptr())
            struct.momentum = _advance(module)
        outputs = [torch.empty(self.images, *value.shape, dtype=FLOAT) for value in self.outputs]
        return outputs, self._call(0, self._middle, inputs, outputs, timed)

    def backward(
        self,
        gradients: Sequence[Tensor],
        empty: Callable[[nn.Parameter], Tensor] = torch.zeros_like,
        timed: bool = False,
    ) -> tuple[dict[nn.Parameter, Tensor], list[Tensor], list[float]]:
        """The gradients of the parameters and of the inputs that ask for one, and the seconds of each step.

        A weight's gradient is dense: ``empty`` makes a tensor that is zero outside the pattern.
        """
        assembly = self._assembly
        for weights, entries, values in self._transposed:
            source = assembly.values[weights].ctypes.data
            library.get().cigl_gather(source, entries.ctypes.data, values.ctypes.data, weights.pattern.count)
        sums = _SUMS.memory(self._summed)
        for number, start in self._steps_of_sums:
            self._steps[number].sums = sums.data_ptr() + start * sums.element_size()
        found: dict[nn.Parameter, Tensor] = {}
        shared: list[tuple[nn.Parameter, Tensor]] = []  # of parameters that several norms or layers use
        for number, result in assembly.targets:
            parameter = result.weight if isinstance(result, Weights) else result
            target = empty(parameter) if isinstance(result, Weights) else torch.zeros_like(parameter)
            self._steps[number].target = target.data_ptr()
            if isinstance(result, Weights):
                self._steps[number].off = address(result.pattern.off)
            _collect(found, shared, parameter, target)
        for state in assembly.norms.values():
            for name in ("weight", "bias"):
                parameter = getattr(state.module, name)
                setattr(state.struct, f"{name}_gradient", None)
                if parameter is not None and parameter.requires_grad:
                    target = torch.zeros_like(parameter)
                    setattr(state.struct, f"{name}_gradient", target.data_ptr())
                    _collect(found, shared, parameter, target)
        inputs = [torch.empty(self.images, *value.shape, dtype=FLOAT) for value in self.gradient_inputs]
        seconds = self._call(self._middle, len(self._steps), gradients, inputs, timed)
        for parameter, target in shared:
            found[parameter] += target
        return found, inputs, seconds

    def _call(
        self, first: int, last: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], timed: bool
    ) -> list[float]:
        sources = (ctypes.c_void_p * len(inputs))(*(each.data_ptr() for each in inputs))
        targets = (ctypes.c_void_p * len(outputs))(*(each.data_ptr() for each in outputs))
        seconds = (ctypes.c_double * len(self._steps))() if timed else None
        program = ctypes.byref(self._struct)
        run = library.get().cigl_train
        if run(self._isa.encode(), program, first, last, self._memory.data_ptr(), sources, targets, seconds):
            raise CiglError(f"this processor has no {self._isa}.")
        return list(seconds or [])

    def kinds(self) -> list[tuple[str, int]]:
        """Each step's direction ("forward" or "backward") and kind, for reports on time."""
        return [
            ("forward" if number < self._middle else "backward", step.kind)
            for number, step in enumerate(self._assembly.steps)
        ]


class _Sums(threading.local):
    """Memory for the sums of weight gradients; zero before and after each backward, so all programs share it."""

    def __init__(self) -> None:
        self._memory = torch.zeros(0, dtype=FLOAT)

    def memory(self, floats: int) -> Tensor:
        if len(self._memory) < floats:
            self._memory = torch.zeros(floats, dtype=FLOAT)
        return self._memory


_SUMS = _Sums()


def _zeros(floats: int) -> Tensor:
    """A piece of memory, in large pages where the system has them; what a step in torch has left behind, free but not
    given back, goes first."""
    size = floats * FLOAT.itemsize
    if size < _LARGE or not sys.platform.startswith("linux"):
        return torch.zeros(floats, dtype=FLOAT)
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=FLOAT)


def _advance(module: Any) -> float:
    """Count the batch, and return the share that its statistics have in the running ones, as torch does."""
    if module.num_batches_tracked is None:
        return 0.0 if module.momentum is None else float(module.momentum)
    module.num_batches_tracked.add_(1)
    return 1.0 / float(module.num_batches_tracked) if module.momentum is None else float(module.momentum)


def _collect(
    found: dict[nn.Parameter, Tensor], shared: list[tuple[nn.Parameter, Tensor]], parameter: Any, target: Tensor
) -> None:
    if parameter in found:
        shared.append((parameter, target))
    else:
        found[parameter] = target
