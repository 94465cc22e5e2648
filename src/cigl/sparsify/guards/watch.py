"""What is probably not going as announced, noticed from the events of the user's loop and said in its first steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cigl.common.copying import uncopyable
from cigl.common.errors import CiglWarning
from cigl.sparsify.guards.readings import Readings
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import has_shards

_SAMPLE = 4096  # weights that tell whether a layer has moved
_NO_GRADIENT = 3  # steps after which a gradient must have reached some layer
_FIRST = 10  # steps after which every layer must have had a gradient, and the weights must have moved
_MARGIN = 0.1  # of the announced length


class Watch:
    """Counts from the start of this process: a resumed run is watched from its own start."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer], table: Timetable, readings: Readings):
        self._model, self._layers, self._announced, self._readings = model, layers, table.steps, readings
        self._steps = 0  # counted ones, here
        self._passes = 0  # backward passes, whose gradients arrived
        self._arrived = False  # gradients, since the last training forward
        self._moves = 0  # of the weights, between the passes of one step
        self._before: Tensor | None = None  # a sample of the weights in the last forward, from a step's second one on
        self._after: Tensor | None = None  # ... and at the end of the last step
        self._has_moved: Tensor | None = None
        self._reached: set[str] = set()
        self._warned: set[str] = set()

    def forward(self) -> None:
        """In a training forward, with Z in force."""
        if not self._arrived or self._steps > _FIRST:  # the first of a step, or one without a backward
            return
        now = self._sample()
        if self._before is not None:
            step = self._steps
            self._readings.ask(_differ(now, self._before), lambda moved: self._moved(step, any(moved)))
            self._readings.step_ended(self._passes)
        self._before, self._arrived = now, False

    def _moved(self, step: int, moved: bool) -> None:
        self._moves += moved and step == self._steps
        if self._moves == 2:  # once may be a perturbation that is taken back (SAM)
            self._warn_once(
                "the weights move from one backward pass to the next, but no step of the attached optimizer is seen: "
                "steps are counted by the optimizer that was given to cigl.attach, so masks, schedule and average "
                "stand still. Attach with the optimizer that trains the model, and step that one."
            )

    def gradient(self, layer: Layer) -> None:
        self._passes += not self._arrived
        self._arrived = True
        self._reached.add(layer.name)

    def updated(self) -> None:
        """After the optimizer's step, before M changes."""
        if self._after is not None:
            now = self._sample()
            moves = _differ(now, self._after) | ~self._after.any()
            self._has_moved = moves if self._has_moved is None else self._has_moved.to(moves.device) | moves

    def step_ended(self, step: int) -> None:
        """``step`` is its number, the resumed run's."""
        self._steps += 1
        self._before, self._arrived, self._moves = None, False, 0
        if self._steps == 1:
            self._may_be_copied()
        if self._steps <= _FIRST:
            self._first_steps()
        self._past_the_end(step, self._announced)

    def _may_be_copied(self) -> None:
        """Results are copies of the model: that one fails should not be news after the training."""
        if not has_shards(self._model) and (what := uncopyable(self._model)):
            self._warn_once(
                f"the model can't be copied ({what}), so finalize will fail: keep outside of it what is not a tensor, "
                "a module or plain data, or give it a __deepcopy__."
            )

    def _first_steps(self) -> None:
        trained = [layer for layer in self._layers if layer.parameter.requires_grad]
        self._reached.update(layer.name for layer in trained if layer.parameter.grad is not None)
        missing = [layer.name for layer in trained if layer.name not in self._reached]
        if self._steps == _NO_GRADIENT and missing and len(missing) == len(trained):
            self._warn_once(
                f"{self._steps} optimizer steps were seen, but no gradient has reached a sparse weight: train the "
                "attached model itself, not a copy of it, with weights that require gradients."
            )
        elif self._steps == _FIRST and missing and len(missing) < len(trained):
            more = f" (and {len(missing) - 1} more layers)" if len(missing) > 1 else ""
            self._warn_once(
                f"no gradient has reached {missing[0]}{more} in {self._steps} steps, so its mask can't learn: is it "
                f"used in the forward? If not, leave it out with layers={{{missing[0]!r}: False}}."
            )
        elif self._steps == _FIRST and not missing and self._has_moved is not None:
            self._readings.ask(self._has_moved, self._stands_still)
        self._after = self._sample() if self._steps < _FIRST else None

    def _stands_still(self, has_moved: list[int]) -> None:
        if not any(has_moved):
            self._warn_once(
                f"the weights of {self._watched().name} have not moved in {_FIRST} optimizer steps: look at the "
                "learning rate and at what the optimizer's groups hold."
            )

    def _past_the_end(self, step: int, announced: int) -> None:
        if step == announced + 1:
            self._warn_once(
                f"training continues past the {announced} steps announced to cigl.attach: no more topology "
                "rounds, and the average continues."
            )
        if step == announced + max(2, int(announced * _MARGIN) + 1):
            self._warn_once(
                f"{step} steps were seen, more than a tenth past the {announced} announced: rounds and averaging "
                "were laid out for another training. epochs and steps_per_epoch count optimizer steps."
            )

    def why(self, step: int) -> str:
        """What it means, in a message, that training, at this step, is more than a tenth off its announced length."""
        announced = self._announced
        if abs(step - announced) <= announced * _MARGIN:
            return ""
        if step > announced:
            return ", so rounds and averaging were laid out for another training"
        passes = self._passes / max(1, self._steps)
        if passes >= 1.5:
            return f", with {passes:.3g} backward passes in each: steps_per_epoch counts optimizer steps, not batches"
        return ", so the schedule of rounds and averaging was not completed"

    def is_off(self, step: int) -> bool:
        """Whether training is short of its announced length, or more than a tenth past it."""
        announced = self._announced
        return step < announced or step > announced * (1 + _MARGIN)

    def _watched(self) -> Layer:
        return next((layer for layer in reversed(self._layers) if layer.parameter.requires_grad), self._layers[-1])

    def _sample(self) -> Tensor:
        layer = self._watched()
        return layer.weight[: max(1, _SAMPLE * layer.shape[0] // layer.size)].clone()

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, CiglWarning, stacklevel=4)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Where a weight is NaN, or has moved to another device, training has other troubles."""
    if a.device != b.device:
        return torch.zeros((), dtype=torch.bool, device=a.device)
    return (a.nan_to_num() != b.nan_to_num()).any()
