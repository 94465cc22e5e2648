"""A stretch of a network as one call into the kernels: operations are recorded, planned once, and then run.

>>> import torch
>>> from cigl.runtime import library
>>> program = Program(images=2, threads=1)
>>> x = program.input(3, 8, 8)
>>> weight = torch.randn(4, 3, 3, 3) * (torch.rand(4, 3, 3, 3) < 0.1)
>>> program.output(program.conv(x, Packed(weight, None), padding=(1, 1), relu=True))
>>> if library.available():
...     program.finish()
...     [y] = program.run(torch.randn(2, 3, 8, 8))
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cigl.errors import CiglError
from cigl.runtime.packed import Packed
from cigl.runtime.planning import Plan
from cigl.runtime.steps import Floats, Kind, Pair, Step, Value

__all__ = ["Packed", "Program", "Value"]


class Program:
    """``images`` of one shape on ``threads`` threads. Record operations, ``finish``, then ``run`` at will.

    Every operation takes and returns ``Value`` and computes what its namesake in torch does, for each image.
    """

    def __init__(self, images: int, threads: int):
        if images < 1 or threads < 1:
            raise CiglError(f"a program needs at least one image and one thread, not {images} and {threads}.")
        self.images, self.threads = images, threads
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._steps: list[Step] = []
        self._known: set[Value] = set()
        self._plan: Plan | None = None
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

    def conv(
        self,
        x: Value,
        packed: Packed,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        relu: bool = False,
        add: Value | None = None,
    ) -> Value:
        """conv(x) + bias + add, then ReLU if asked for."""
        out = Value((packed.outputs, *self._window(x, packed.kernel, stride, padding)))
        self._check_conv(x, packed, add, out)
        step = Step(Kind.CONV, x, out, add, packed=packed, relu=relu, stride=stride, padding=padding)
        return self._record(step)

    def conv_and_norm(
        self,
        x: Value,
        packed: Packed,
        scale: Tensor,
        shift: Tensor,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        add: Value | None = None,
        keep: bool = True,
    ) -> tuple[Value, Value]:
        """sum = conv(x) + bias + add and relu(scale * sum + shift), in one pass; ``keep`` the sum or not."""
        out = Value((packed.outputs, *self._window(x, packed.kernel, stride, padding)))
        self._check_conv(x, packed, add, out)
        norm = self._per_channel(out, scale, shift)
        normed = Value(out.shape)
        step = Step(Kind.CONV, x, out, add, normed, keep, packed, *norm, stride=stride, padding=padding)
        self._record(step)
        return out, normed

    def linear(self, x: Value, packed: Packed, *, relu: bool = False) -> Value:
        if len(x.shape) != 1 or packed.kernel != (1, 1) or packed.inputs != x.shape[0]:
            raise CiglError(f"a linear layer of {packed.inputs} features can't take {x.shape}.")
        return self._record(Step(Kind.DOT, x, Value((packed.outputs,)), packed=packed, relu=relu))

    def norm(self, x: Value, scale: Tensor, shift: Tensor, *, relu: bool = False) -> Value:
        """scale * x + shift per channel, for a batch norm that can't be folded."""
        scale_, shift_ = self._per_channel(x, scale, shift)
        return self._record(Step(Kind.ELEMENTWISE, x, Value(x.shape), scale=scale_, shift=shift_, relu=relu))

    def add(self, a: Value, b: Value, *, relu: bool = False) -> Value:
        if a.shape != b.shape:
            raise CiglError(f"{a.shape} and {b.shape} can't be added: only equal shapes can.")
        return self._record(Step(Kind.ELEMENTWISE, a, Value(a.shape), b, relu=relu))

    def relu(self, x: Value) -> Value:
        return self._record(Step(Kind.ELEMENTWISE, x, Value(x.shape), relu=True))

    def max_pool(self, x: Value, kernel: Pair, stride: Pair, padding: Pair) -> Value:
        return self._pool(Kind.MAX_POOL, x, kernel, stride, padding, False)

    def avg_pool(self, x: Value, kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool = True) -> Value:
        return self._pool(Kind.AVG_POOL, x, kernel, stride, padding, count_include_pad)

    def mean(self, x: Value) -> Value:
        """Global average pooling, to (C, 1, 1)."""
        self._need_image(x)
        return self._record(Step(Kind.MEAN, x, Value((x.shape[0], 1, 1))))

    def flatten(self, x: Value) -> Value:
        """All features of an image in one row, in torch's order."""
        flat = (int(np.prod(x.shape)),)
        if len(x.shape) == 1:
            return x
        if x in self._inputs:  # the caller's memory is in that order already
            value = Value(flat, source=x)
            self._known.add(value)
            return value
        return self._record(Step(Kind.FLATTEN, x, Value(flat)))

    def output(self, x: Value) -> None:
        """``run`` returns these in the order of the calls."""
        self._check(x)
        self._outputs.append(x)

    # Running

    def finish(self) -> None:
        """Plan the memory. Nothing can be recorded any more."""
        if not self._outputs:
            raise CiglError("a program without an output computes nothing: call output() first.")
        self._check(*self._outputs)
        self._plan = Plan(self._inputs, self._steps, self._outputs, self.images, self.threads)

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs for a batch, as new tensors. Safe to call from several threads at once."""
        return self._run(inputs, timed=False)[0]

    def times(self, *inputs: Tensor) -> tuple[dict[Value, float], list[float]]:
        """Seconds to make each value in a run (``conv_and_norm``: its second), and to write each output."""
        _, seconds = self._run(inputs, timed=True)
        values: dict[Value, float] = {}
        outputs = [0.0] * len(self._outputs)
        for made, took in zip(self._planned().made, seconds, strict=True):
            if isinstance(made, int):
                outputs[made] += took
            else:
                value = made.source or made
                values[value] = values.get(value, 0.0) + took
        return values, outputs

    @property
    def bytes(self) -> int:
        """What one run at a time needs beside the packed weights."""
        return self._planned().bytes

    def _planned(self) -> Plan:
        if self._plan is None:
            raise CiglError("a program must be finished first: call finish().")
        return self._plan

    def _run(self, inputs: tuple[Tensor, ...], timed: bool) -> tuple[list[Tensor], list[float]]:
        plan = self._planned()
        if len(inputs) != len(self._inputs):
            raise CiglError(f"the program takes {len(self._inputs)} inputs, not {len(inputs)}.")
        sources = [self._source(i, tensor) for i, tensor in enumerate(inputs)]
        outputs = [torch.empty(self.images, *value.shape) for value in self._outputs]
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = torch.zeros(plan.floats)
        seconds = plan.run(arena, sources, outputs, timed)
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

    # Checks

    def _check(self, *values: Value) -> None:
        if self._plan is not None:
            raise CiglError("the program is finished: make a new one to record other operations.")
        if any(value not in self._known for value in values):
            raise CiglError("a value belongs to the program that made it, and a sum that isn't kept can't be used.")

    def _record(self, step: Step) -> Value:
        self._check(*step.reads())
        self._steps.append(step)
        self._known.update(step.writes())
        return step.out

    @staticmethod
    def _need_image(x: Value) -> None:
        if len(x.shape) != 3:
            raise CiglError(f"this operation needs (channels, height, width), not {x.shape}.")

    def _window(self, x: Value, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
        """The output's height and width."""
        self._need_image(x)
        if min(kernel) < 1 or min(stride) < 1 or min(padding) < 0:
            raise CiglError(f"no window has kernel {kernel}, stride {stride} and padding {padding}.")
        height, width = ((x.shape[i + 1] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
        if height < 1 or width < 1:
            raise CiglError(f"a window of {kernel} with padding {padding} does not fit into {x.shape}.")
        return height, width

    def _check_conv(self, x: Value, packed: Packed, add: Value | None, out: Value) -> None:
        if packed.inputs != x.shape[0]:
            raise CiglError(f"a convolution of {packed.inputs} channels can't take {x.shape}.")
        if add is not None and add.shape != out.shape:
            raise CiglError(f"{add.shape} can't be added to a convolution's {out.shape}: only equal shapes can.")

    def _pool(self, kind: Kind, x: Value, kernel: Pair, stride: Pair, padding: Pair, count: bool) -> Value:
        out = Value((x.shape[0], *self._window(x, kernel, stride, padding)))
        if any(2 * padding[i] > kernel[i] for i in (0, 1)):
            raise CiglError(f"a pooling's padding {padding} must be at most half of its kernel {kernel}.")
        step = Step(kind, x, out, kernel=kernel, stride=stride, padding=padding, count_padding=count)
        return self._record(step)

    @staticmethod
    def _per_channel(x: Value, scale: Tensor, shift: Tensor) -> tuple[Floats, Floats]:
        if scale.shape != (x.shape[0],) or shift.shape != (x.shape[0],):
            raise CiglError(f"scale and shift must have one value for each of {x.shape[0]} channels.")
        return scale.detach().float().cpu().numpy().copy(), shift.detach().float().cpu().numpy().copy()
