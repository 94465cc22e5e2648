"""Whether kernels compute what torch does: compared while they run.

Two nets. A step of the whole model that torch computes anyway (the first, and those that need a dense gradient) is
computed once more by the captured graph on kernels, from the same weights, statistics and random numbers, before the
weights move: this compares the capture, too. And a subgraph of which no such step was compared is compared with torch
where it first runs: outputs when they are there, gradients in the backward.

Both round differently, and a network may magnify that: behind a batch norm over equal values, or where a ReLU's input
is next to zero. So what exceeds a tolerance is compared with what torch's own result does when the values in between
are changed by a few units in their last place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from cigl.runtime.training.weights import Patterns

if TYPE_CHECKING:
    from cigl.runtime.training.network import PartitionedModel
    from cigl.runtime.training.subgraph import Subgraph

# Norm of the difference over the norm itself. Rounding gives 1e-7 to 1e-5 where nothing magnifies it.
OUTPUTS, GRADIENTS = 1e-3, 1e-2
SHARE = 0.02  # of the time of training that comparing may take
_SMALL = 1e-3  # of the largest norm: of a tensor with less, rounding may be all there is
_ROUNDING = 1e-6  # of a value, as sums in another order differ
_FACTOR = 10.0  # how much more than that of torch's own result is still rounding

Tensors = Sequence[Tensor | None]
Rounded = Callable[[Tensor], Tensor]


def difference(ours: Tensor, theirs: Tensor, size: float = 0.0) -> float:
    """Relative to their norm, or to ``size`` if that is larger; 0 where neither is finite, as in a diverging step."""
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not bool(theirs.isfinite().all()):
        return 0.0
    apart = float((ours - theirs).norm())
    return apart / max(float(theirs.norm()), size, 1e-30) if apart else 0.0


def differences(ours: Tensors, theirs: Tensors) -> list[float]:
    """Of each tensor; a missing one is zero."""
    size = _SMALL * max((float(each.detach().double().norm()) for each in theirs if each is not None), default=0.0)
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None and other is None:
            found.append(0.0)
        elif mine is None or other is None:
            known = other if mine is None else mine
            assert known is not None
            found.append(difference(torch.zeros_like(known), known, size))
        else:
            found.append(difference(mine, other, size))
    return found


def beyond_rounding(ours: Tensors, theirs: Tensors, most: float, again: Callable[[Rounded], Tensors]) -> float:
    """The largest difference that rounding does not explain, or 0.

    ``again`` computes the same operations in torch, with each value in between passed through what it is given.
    """
    apart, plain = differences(ours, theirs), None
    for rounding in _ROUNDINGS:
        if max(apart, default=0.0) <= most:
            return 0.0
        plain = again(_unchanged) if plain is None else plain  # not theirs, which may be of other operations
        natural = differences(again(rounding), plain)
        apart = [0.0 if each <= _FACTOR * own else each for each, own in zip(apart, natural, strict=True)]
    return max(apart, default=0.0)


def _unchanged(x: Tensor) -> Tensor:
    return x


class _Rounding:
    """Changes a tensor as rounding might."""

    def __init__(self, seed: int):
        self._seed = seed

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        size = x.detach()
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(self._seed)).to(x)
        return x + _ROUNDING * noise * (size.abs() + size.square().mean().sqrt())


_ROUNDINGS = [_Rounding(seed) for seed in range(3)]


class Budget:
    """The time that comparing may take: at most a share of training, but for what was never compared.

    A clock decides nothing else: whether a step is compared or not, its numbers are the same bits.
    """

    def __init__(self) -> None:
        self._began, self._spent = time.perf_counter(), 0.0
        self.is_owed = True  # something new is to be compared, whatever it takes

    def allows(self) -> bool:
        return self.is_owed or self._spent <= SHARE * (time.perf_counter() - self._began)

    @contextmanager
    def spending(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - began


class Check:
    """Of subgraphs in their first step. ``refuse`` is told which weights kernels must not compute with, and why."""

    def __init__(self, patterns: Patterns, refuse: Callable[[Iterable[nn.Parameter], str], None], budget: Budget):
        self._patterns, self._refuse, self._budget = patterns, refuse, budget

    def outputs_agree(self, subgraph: Subgraph, ours: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
        with torch.no_grad(), self._budget.spending():
            theirs = subgraph.in_torch(inputs)
            shaped = [each.view(other.shape) for each, other in zip(ours, theirs, strict=True)]
            worst = beyond_rounding(shaped, theirs, OUTPUTS, lambda rounded: subgraph.in_torch(inputs, rounded=rounded))
        return self._agree(subgraph, worst, "outputs")

    def torch_gradients(
        self, subgraph: Subgraph, ours: Tensors, in_torch: Callable[[Rounded], Tensors]
    ) -> Tensors | None:
        """torch's, if ours are others. Of a sparse weight where it is not zero: elsewhere kernels compute none."""
        tensors = [*[None] * len(subgraph.inputs), *subgraph.parameters]

        def shown(gradients: Tensors) -> Tensors:
            return [
                each * (own != 0) if each is not None and own is not None and self._patterns.is_sparse(own) else each
                for each, own in zip(gradients, tensors, strict=True)
            ]

        with self._budget.spending():
            theirs = in_torch(_unchanged)
            worst = beyond_rounding(shown(ours), shown(theirs), GRADIENTS, lambda rounded: shown(in_torch(rounded)))
        return None if self._agree(subgraph, worst, "gradients") else theirs

    def _agree(self, subgraph: Subgraph, worst: float, what: str) -> bool:
        if not worst:
            return True
        names = [unit.name for unit in subgraph.units if unit.module is not None]
        where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        self._refuse(
            subgraph.parameters,
            f"{what} of {where} on sparse kernels differ from torch's by {worst:.2g} of their size, so they run "
            "in torch",
        )
        return False


class NotDifferentiable(Exception):
    """Why gradients of a step can't be computed besides the user's."""


class Replay:
    """A step that torch computes, to be computed once more by ``plan``, the captured graph on kernels, and compared.

    The gradients that are compared are those of the outputs in a random direction: a loss may use the weights besides.
    """

    def __init__(
        self,
        plan: PartitionedModel,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        patterns: Patterns,
        model: nn.Module,
    ):
        self.plan, self._graph, self._inputs, self._patterns = plan, graph, list(inputs), patterns
        learned = {id(p) for p in model.parameters() if p.requires_grad}
        watched = any(module._backward_hooks or module._backward_pre_hooks for module in model.modules())
        self._learned = [p for p in inputs if id(p) in learned and not watched and not _is_watched(p, patterns)]
        buffers = {id(buffer) for buffer in model.buffers()}
        self._before = [(each, each.clone()) for each in inputs if id(each) in buffers]
        self._versions = [(x, x._version) for x in inputs if isinstance(x, Tensor) and id(x) not in buffers]
        self._random = torch.get_rng_state()
        self._outputs: list[Tensor] = []
        self._directions: list[Tensor | None] = []  # of outputs that need gradients
        self._after: list[Tensor] = []
        self._gradients: Tensors = []
        self._shaken: dict[Rounded, tuple[Tensors, ...]] = {}

    def torch_computed(self, result: Any) -> None:
        """Keep torch's outputs, statistics and gradients."""
        self._after = [buffer.clone() for buffer, _ in self._before]
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        generator = torch.Generator().manual_seed(0)
        for leaf in leaves:
            drawn = torch.randn(leaf.shape, generator=generator).to(leaf) if leaf.requires_grad else None
            self._outputs.append(leaf.detach())
            self._directions.append(drawn)
        try:
            self._gradients = self._gradients_of(leaves, self._learned, retain_graph=True)
        except RuntimeError as error:  # a custom backward that can run once
            raise NotDifferentiable(str(error)) from error

    @property
    def is_possible(self) -> bool:
        """Whether weights and inputs are as they were. (An eval forward restores what Z has switched off.)"""
        return all(x._version == version for x, version in self._versions)

    def difference(self) -> str | None:
        """What differs beyond rounding, and by how much; None if nothing does."""
        ours, self._shaken = self._computed_by(self.plan), {}
        theirs = (self._outputs, self._after, self._gradients)
        for number, (what, most) in enumerate(_PARTS):
            again = partial(self._again, number)
            worst = beyond_rounding(ours[number], theirs[number], most, again)
            if worst:
                return f"{what} of the model on sparse kernels differ from torch's by {worst:.2g} of their size"
        return None

    def _again(self, number: int, rounded: Rounded) -> Tensors:
        if rounded not in self._shaken:  # all parts come from the same computation
            self._shaken[rounded] = self._computed_by(lambda given: _Rounded(self._graph, rounded).run(*given))
        return self._shaken[rounded][number]

    def _computed_by(self, function: Callable[[Sequence[Any]], Any]) -> tuple[Tensors, ...]:
        """Outputs, statistics and gradients; the model's stay as they are."""
        learned = {id(p): p.detach().requires_grad_() for p in self._learned}  # whose hooks are not called
        given = [learned.get(id(x), x.detach() if isinstance(x, Tensor) else x) for x in self._inputs]
        now = torch.get_rng_state()
        try:
            torch.set_rng_state(self._random)
            for buffer, value in self._before:
                buffer.data.copy_(value)  # unseen by graphs that have saved it
            with torch.enable_grad():
                results = [each for each in pytree.tree_leaves(function(given)) if isinstance(each, Tensor)]
            moved = [buffer.clone() for buffer, _ in self._before]
            pairs = zip(self._outputs, self._directions, strict=True)
            outputs = [_closest(theirs, direction is not None, [*results, *given]) for theirs, direction in pairs]
            return outputs, moved, self._gradients_of(outputs, list(learned.values()), retain_graph=False)
        finally:
            torch.set_rng_state(now)
            for (buffer, _), value in zip(self._before, self._after, strict=True):
                buffer.data.copy_(value)

    def _gradients_of(self, outputs: Tensors, tensors: Sequence[Tensor], retain_graph: bool) -> Tensors:
        """Of a sparse weight where it is active: that is what kernels compute."""
        pairs = [
            (out, way)
            for out, way in zip(outputs, self._directions, strict=True)
            if out is not None and out.requires_grad and way is not None
        ]
        if not pairs or not tensors:
            return [None] * len(tensors)
        results, directions = zip(*pairs, strict=True)
        found = torch.autograd.grad(results, tensors, directions, retain_graph=retain_graph, allow_unused=True)
        return [
            None if gradient is None else self._patterns.at_active(own, gradient)
            for own, gradient in zip(self._learned, found, strict=True)
        ]


_PARTS = (("outputs", OUTPUTS), ("buffers (as batch norm's statistics)", OUTPUTS), ("gradients", GRADIENTS))


class _Rounded(fx.Interpreter):
    """Runs a graph with the values in between passed through a function."""

    def __init__(self, graph: fx.GraphModule, rounded: Rounded):
        super().__init__(graph)
        self._rounded = rounded

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        return self._rounded(result) if target in _ROUNDS else result


def _rounding_calls() -> set[Any]:
    names = ("linear", "conv1d", "conv2d", "batch_norm", "layer_norm", "scaled_dot_product_attention", "gelu")
    return {getattr(nn.functional, name) for name in names}


_ROUNDS = _rounding_calls()


def _is_watched(parameter: Any, patterns: Patterns) -> bool:
    """Whether hooks of the user's are on it. (A sparse one has one of ours.)"""
    return len(parameter._backward_hooks or ()) > patterns.is_sparse(parameter)


def _closest(theirs: Tensor, learns: bool, results: Sequence[Any]) -> Tensor | None:
    """Which result an output is."""
    fitting = [each for each in results if isinstance(each, Tensor) and each.shape == theirs.shape]
    fitting = [each for each in fitting if each.requires_grad == learns] or fitting
    return min(fitting, key=lambda each: difference(each, theirs), default=None)
