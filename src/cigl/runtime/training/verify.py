"""Whether kernels compute what torch does: compared while they run.

Two nets. A stretch is compared with torch in the first step that uses it: outputs when they are there, gradients in the
backward. And where torch computes a step of the whole model anyway, for its dense gradient, the captured graph computes
it once more on kernels, from the same weights, statistics and random numbers; this compares the capture, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from cigl.runtime.training.weights import Patterns

if TYPE_CHECKING:
    from cigl.runtime.training.stretch import Stretch

# Norm of the difference over the norm itself. Rounding gives 1e-7 to 1e-5; near a ReLU's zero it may switch a unit.
OUTPUTS, GRADIENTS = 1e-3, 1e-2
_SMALL = 1e-3  # of the largest gradient's norm: of less, rounding may be all there is


def difference(ours: Tensor, theirs: Tensor, size: float = 0.0) -> float:
    """Relative to their norm, or to ``size`` if that is larger; 0 where neither is finite, as in a diverging step."""
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not bool(theirs.isfinite().all()):
        return 0.0
    apart = float((ours - theirs).norm())
    return apart / max(float(theirs.norm()), size, 1e-30) if apart else 0.0


def largest_difference(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> float:
    """Over tensors of which some are missing: a missing one is zero."""
    largest = max((float(each.detach().double().norm()) for each in theirs if each is not None), default=0.0)
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None and other is None:
            continue
        mine = torch.zeros_like(other) if mine is None and other is not None else mine
        other = torch.zeros_like(mine) if other is None and mine is not None else other
        assert mine is not None
        assert other is not None
        worst = max(worst, difference(mine, other, _SMALL * largest))
    return worst


class Check:
    """Of stretches in their first step. ``refuse`` is told which weights kernels must not compute with, and why."""

    def __init__(self, patterns: Patterns, refuse: Callable[[Iterable[nn.Parameter], str], None]):
        self._patterns, self._refuse = patterns, refuse

    def outputs_agree(self, stretch: Stretch, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
        shaped = [each.view(other.shape) for each, other in zip(ours, theirs, strict=True)]
        return self._agree(stretch, largest_difference(shaped, theirs), OUTPUTS, "outputs")

    def gradients_agree(self, stretch: Stretch, ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> bool:
        """Of a sparse weight where it is not zero: elsewhere kernels compute no gradient."""
        tensors = [*[None] * len(stretch.inputs), *stretch.parameters]
        shown = [
            [
                each * (own != 0) if each is not None and own is not None and self._patterns.is_sparse(own) else each
                for each, own in zip(gradients, tensors, strict=True)
            ]
            for gradients in (ours, theirs)
        ]
        return self._agree(stretch, largest_difference(*shown), GRADIENTS, "gradients")

    def _agree(self, stretch: Stretch, worst: float, most: float, what: str) -> bool:
        if worst <= most:
            return True
        names = [unit.name for unit in stretch.units if unit.module is not None]
        where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        self._refuse(
            stretch.parameters,
            f"{what} of {where} on sparse kernels differ from torch's by {worst:.2g} of their size, so they run "
            "in torch",
        )
        return False


class Replay:
    """A step that torch computes, to be computed once more by ``plan``, the captured graph on kernels, and compared.

    The gradients that are compared are those of the outputs in a random direction: a loss may use the weights besides.
    """

    def __init__(
        self,
        plan: Callable[[Sequence[Any]], Any],
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        patterns: Patterns,
        model: nn.Module,
    ):
        self._plan, self.graph, self.inputs, self._patterns = plan, graph, list(inputs), patterns
        learned = {id(p) for p in model.parameters() if p.requires_grad}
        watched = any(module._backward_hooks or module._backward_pre_hooks for module in model.modules())
        self._learned = [p for p in inputs if id(p) in learned and not watched and not _is_watched(p, patterns)]
        buffers = {id(buffer) for buffer in model.buffers()}
        self._before = [(each, each.clone()) for each in inputs if id(each) in buffers]
        self._versions = [(x, x._version) for x in inputs if isinstance(x, Tensor) and id(x) not in buffers]
        self._random = torch.get_rng_state()
        self._outputs: list[tuple[Tensor, Tensor | None]] = []  # with the directions of those that need gradients
        self._after: list[Tensor] = []
        self._gradients: list[Tensor | None] = []

    def torch_computed(self, result: Any) -> None:
        """Keep torch's outputs, statistics and gradients."""
        self._after = [buffer.clone() for buffer, _ in self._before]
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        generator = torch.Generator().manual_seed(0)
        for leaf in leaves:
            drawn = torch.randn(leaf.shape, generator=generator).to(leaf) if leaf.requires_grad else None
            self._outputs.append((leaf.detach(), drawn))
        pairs = [(leaf, drawn) for leaf, (_, drawn) in zip(leaves, self._outputs, strict=True) if drawn is not None]
        self._gradients = self._gradients_of(pairs, self._learned, retain_graph=True)

    @property
    def is_possible(self) -> bool:
        """Whether weights and inputs are as they were. (An eval forward restores what Z has switched off.)"""
        return all(x._version == version for x, version in self._versions)

    def difference(self) -> tuple[str, float] | None:
        """What differs beyond rounding, and by how much; None if nothing does."""
        learned = {id(p): p.detach().requires_grad_() for p in self._learned}  # whose hooks are not called
        given = [learned.get(id(x), x.detach() if isinstance(x, Tensor) else x) for x in self.inputs]
        now = torch.get_rng_state()
        try:
            torch.set_rng_state(self._random)
            for buffer, value in self._before:
                buffer.copy_(value)
            with torch.enable_grad():
                results = [each for each in pytree.tree_leaves(self._plan(given)) if isinstance(each, Tensor)]
            moved = [buffer.clone() for buffer, _ in self._before]
        finally:
            torch.set_rng_state(now)
            for (buffer, _), value in zip(self._before, self._after, strict=True):
                buffer.copy_(value)
        pairs = []
        for theirs, direction in self._outputs:
            mine, apart = _closest(theirs, direction is not None, [*results, *given])
            if mine is None or apart > OUTPUTS:
                return "outputs", apart
            if direction is not None:
                pairs.append((mine, direction))
        if (apart := largest_difference(moved, self._after)) > OUTPUTS:
            return "statistics of batch norm", apart
        gradients = self._gradients_of(pairs, list(learned.values()), retain_graph=False)
        apart = largest_difference(gradients, self._gradients)
        return ("gradients", apart) if apart > GRADIENTS else None

    def _gradients_of(
        self, pairs: Sequence[tuple[Tensor, Tensor]], tensors: Sequence[Tensor], retain_graph: bool
    ) -> list[Tensor | None]:
        """Of a sparse weight where it is active: that is what kernels compute."""
        if not pairs or not tensors or not all(result.requires_grad for result, _ in pairs):
            return [None] * len(tensors)
        results, directions = zip(*pairs, strict=True)
        found = torch.autograd.grad(results, tensors, directions, retain_graph=retain_graph, allow_unused=True)
        return [
            None if gradient is None else self._patterns.at_active(own, gradient)
            for own, gradient in zip(self._learned, found, strict=True)
        ]


def _is_watched(parameter: Any, patterns: Patterns) -> bool:
    """Whether hooks of the user's are on it. (A sparse one has one of ours.)"""
    return len(parameter._backward_hooks or ()) > patterns.is_sparse(parameter)


def _closest(theirs: Tensor, learns: bool, results: Sequence[Any]) -> tuple[Tensor | None, float]:
    """Which result an output is, and how far from it."""
    fitting = [each for each in results if isinstance(each, Tensor) and each.shape == theirs.shape]
    fitting = [each for each in fitting if each.requires_grad == learns] or fitting
    best = min(fitting, key=lambda each: difference(each, theirs), default=None)
    return best, 1.0 if best is None else difference(best, theirs)
