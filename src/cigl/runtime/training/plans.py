"""Captured graphs and how each runs on inputs of one kind: what is on kernels, and whether that was compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from cigl.runtime.training.capture.graphs import LoweredGraph, NotLowered, lower_graph
from cigl.runtime.training.network import PartitionedModel
from cigl.runtime.training.verify import Budget, Check
from cigl.runtime.training.weights import Patterns

_SHAPES = 6  # of inputs, whose programs are kept; the one not used for longest goes first
_LOWERED = 32  # kinds of inputs whose networks are kept


class Plans:
    """For the graphs of one model. ``refused`` is told what kernels must not compute, ``unreadable`` why they can't."""

    def __init__(
        self,
        model: nn.Module,
        patterns: Patterns,
        insist: bool,
        refused: Callable[[str], None],
        unreadable: Callable[[str], None],
        budget: Budget,
    ):
        self._model, self._patterns, self._insist = model, patterns, insist
        self._refused, self._unreadable = refused, unreadable
        self._names: dict[int, str] = {}
        self._lowered: OrderedDict[Any, LoweredGraph | None] = OrderedDict()
        self._plans: OrderedDict[Any, PartitionedModel | None] = OrderedDict()
        self._wrong: set[nn.Parameter] = set()  # weights with which kernels have computed something else than torch
        self._compared: set[Any] = set()  # graphs, by their id, and kinds of their inputs
        self.check = Check(patterns, self._refuse, budget)

    def of(self, graph: fx.GraphModule, args: Sequence[Any]) -> PartitionedModel | None:
        """For inputs like these; None where all of it runs in torch."""
        key = (self._kind(graph, args), torch.get_num_threads())
        if key not in self._plans:
            self._names = _names(self._model)
            kind = self._kind(graph, args)
            key = (kind, torch.get_num_threads())
            lowered = self._lower(kind, graph, args)
            plan = None if lowered is None else self._partitioned(lowered, kind)
            self._plans[key] = plan if plan is not None and plan.subgraphs else None
            if len(self._plans) > _SHAPES:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        plan = self._plans[key]
        if plan is not None and any(not self.may_run(weight) for s in plan.subgraphs for weight in s.parameters):
            del self._plans[key]
            return self.of(graph, args)
        return plan

    def is_due(self, plan: PartitionedModel, everything: bool) -> bool:
        """Whether kernels are to be compared with torch now: for the first inputs of a graph, for other shapes only
        when ``everything`` is due. They are compared then.
        """
        due = plan.kind not in self._compared and (everything or plan.kind[0] not in self._compared)
        if due:
            self.was_compared(plan)
        return due

    def was_compared(self, plan: PartitionedModel) -> None:
        self._compared |= {plan.kind, plan.kind[0]}

    def compare_again(self) -> None:
        self._compared.clear()

    def may_run(self, weight: nn.Parameter) -> bool:
        """Whether kernels may compute with it."""
        return weight not in self._wrong

    def release(self) -> None:
        """Give up the memory of programs."""
        for plan in self._plans.values():
            for subgraph in () if plan is None else plan.subgraphs:
                subgraph.release()
        self._plans.clear()

    def _kind(self, graph: fx.GraphModule, args: Sequence[Any]) -> tuple[Any, ...]:
        """What a plan depends on: the graph, which parameters and buffers it is given, and the shapes of the rest."""
        names = self._names
        return (
            id(graph),
            *(id(x) if id(x) in names else x.shape if isinstance(x, Tensor) else None for x in args),
        )

    def _lower(self, kind: Any, graph: fx.GraphModule, args: Sequence[Any]) -> LoweredGraph | None:
        if kind not in self._lowered:
            try:
                self._lowered[kind] = lower_graph(graph, args, self._names)
            except Exception as reason:  # nothing in a stranger's model may end the training
                self._unreadable(str(reason) if isinstance(reason, NotLowered) else repr(reason))
                self._lowered[kind] = None
            if len(self._lowered) > _LOWERED:
                self._lowered.popitem(last=False)
        return self._lowered[kind]

    def _partitioned(self, lowered: LoweredGraph, kind: tuple[Any, ...]) -> PartitionedModel:
        threads = torch.get_num_threads()
        return PartitionedModel(lowered, kind, self._patterns, threads, self._insist, self.may_run)

    def _refuse(self, weights: Iterable[nn.Parameter], reason: str) -> None:
        self._wrong.update(weights)
        self._refused(reason)


def _names(model: nn.Module) -> dict[int, str]:
    """Of parameters and buffers, by their id."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {id(tensor): name for name, tensor in tensors}
