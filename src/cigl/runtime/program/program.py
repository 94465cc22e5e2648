"""A subgraph of a network as one call into the kernels: operations are recorded, prepared once, and then run.

>>> import torch
>>> from cigl.runtime.network import operations as op
>>> from cigl.runtime.network.weights import Weight
>>> from cigl.runtime.program import library
>>> program = Program(images=2, threads=1)
>>> x = program.input(3, 8, 8)
>>> weight = torch.randn(4, 3, 3, 3) * (torch.rand(4, 3, 3, 3) < 0.1)
>>> [y] = program.record(op.Conv(Weight(weight, None), padding=(1, 1), activation="relu"), x)
>>> program.output(y)
>>> if library.available():
...     program.finish()
...     [y] = program.run(torch.randn(2, 3, 8, 8))
"""

from __future__ import annotations

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.runtime.network.operations import Operation
from cigl.runtime.program.emitting import emit
from cigl.runtime.program.executable import Executable
from cigl.runtime.program.steps import Step, Value


class Program:
    """``images`` of one shape on ``threads`` threads. Record operations, ``finish``, then ``run`` again and again."""

    def __init__(self, images: int, threads: int):
        if images < 1 or threads < 1:
            raise CiglError(f"a program needs at least one image and one thread, not {images} and {threads}.")
        self.images, self.threads = images, threads
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._steps: list[Step] = []
        self._known: set[Value] = set()
        self._executable: Executable | None = None
        self._arenas: list[Tensor] = []  # those not in use: a run takes one, or makes one

    # Recording

    def input(self, *shape: int) -> Value:
        """The next argument of ``run``, per image: (C, H, W) or (F,)."""
        if len(shape) not in (1, 3) or min(shape) < 1:
            raise CiglError(f"an input must be (channels, height, width) or (features,), not {shape}.")
        value = Value(tuple(int(size) for size in shape))
        self._inputs.append(value)
        self._known.add(value)
        return value

    def record(self, operation: Operation, *inputs: Value) -> tuple[Value, ...]:
        """The operation's results for each image, as torch computes them."""
        self._check(*inputs)
        steps = emit(operation, *inputs)
        self._steps += steps
        self._known.update(value for step in steps for value in step.writes())
        return steps[-1].writes() if steps else inputs

    def output(self, x: Value) -> None:
        """``run`` returns these in the order of the calls."""
        self._check(x)
        self._outputs.append(x)

    # Running

    def finish(self) -> None:
        """Lay out the memory. Nothing can be recorded any more."""
        if not self._outputs:
            raise CiglError("a program without an output computes nothing: call output() first.")
        self._check(*self._outputs)
        self._executable = Executable(self._inputs, self._steps, self._outputs, self.images, self.threads)

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs for a batch, as new tensors. Safe to call from several threads at once."""
        return self._run(inputs, timed=False)[0]

    def times(self, *inputs: Tensor) -> tuple[dict[Value, float], list[float]]:
        """Seconds to compute each value in a run (a convolution with a norm: its second), and to write each output."""
        _, seconds = self._run(inputs, timed=True)
        values: dict[Value, float] = {}
        outputs = [0.0] * len(self._outputs)
        for made, took in zip(self._finished().made, seconds, strict=True):
            if isinstance(made, int):
                outputs[made] += took
            else:
                values[made] = values.get(made, 0.0) + took
        return values, outputs

    @property
    def bytes(self) -> int:
        """What one run at a time needs beside the packed weights."""
        return self._finished().bytes

    def _finished(self) -> Executable:
        if self._executable is None:
            raise CiglError("a program must be finished first: call finish().")
        return self._executable

    def _run(self, inputs: tuple[Tensor, ...], timed: bool) -> tuple[list[Tensor], list[float]]:
        executable = self._finished()
        if len(inputs) != len(self._inputs):
            raise CiglError(f"the program takes {len(self._inputs)} inputs, not {len(inputs)}.")
        sources = [self._source(i, tensor) for i, tensor in enumerate(inputs)]
        outputs = [torch.empty(self.images, *value.shape, dtype=torch.float32) for value in self._outputs]
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = torch.zeros(executable.floats, dtype=torch.float32)
        seconds = executable.run(arena, sources, outputs, timed)
        self._arenas.append(arena)
        return outputs, seconds

    def _source(self, i: int, tensor: Tensor) -> Tensor:
        wanted = (self.images, *self._inputs[i].shape)
        if tuple(tensor.shape) != wanted or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise CiglError(
                f"input {i} must be float32 of shape {wanted} on the CPU, not {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}."
            )
        return tensor.detach().contiguous()

    def _check(self, *values: Value) -> None:
        if self._executable is not None:
            raise CiglError("the program is finished: make a new one to record other operations.")
        if any(value not in self._known for value in values):
            raise CiglError("a value belongs to the program that recorded it.")
