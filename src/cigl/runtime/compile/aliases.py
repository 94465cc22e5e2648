"""Which values of a graph may share their memory: a change in place reaches all of them.

Nodes are visited in their order, and what is not read any more is forgotten, so that the time is linear in the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import fx, nn

from cigl.runtime.compile.parsing import IN_PLACE, makes_new


class SharedMemory(Exception):
    """A tensor is changed in place while another name for its memory is still read."""


class _Cell:
    """The value that some nodes have now. A change in place gives all of them the new one."""

    def __init__(self, number: int, node: fx.Node, last: int):
        self.number, self.node, self.last = number, node, last  # the node of them that is read last, and where
        self.memory = {self}  # the cells that may share this one's memory: the same set for each


class Values:
    """The numbers of the nodes' values."""

    def __init__(self, graph: fx.Graph):
        self._place = {node: number for number, node in enumerate(graph.nodes)}
        self._last = {node: max(map(self._place.__getitem__, node.users), default=-1) for node in graph.nodes}
        self._cells: dict[fx.Node, _Cell] = {}
        self._count = 0

    def __getitem__(self, node: fx.Node) -> int:
        return self._cells[node].number

    def new(self, node: fx.Node) -> int:
        """For a value of its own."""
        self._cells[node] = _Cell(self._count, node, self._last[node])
        self._count += 1
        return self._count - 1

    def same(self, node: fx.Node, source: fx.Node) -> None:
        """``node`` is another name of what ``source`` is."""
        cell = self._cells[node] = self._cells[source]
        if self._last[node] > cell.last:
            cell.node, cell.last = node, self._last[node]

    def changed(self, node: fx.Node, source: fx.Node) -> int:
        """``node`` is what ``source`` has become; whoever reads either from now on reads the new value."""
        cell = self._cells[source]
        cell.memory.discard(cell)
        cell.memory = {cell}
        self.same(node, source)
        cell.number, self._count = self._count, self._count + 1
        return cell.number

    def share(self, node: fx.Node, sources: Iterable[fx.Node]) -> None:
        """``node`` may be a view of any of these."""
        for source in sources:
            small, large = sorted((self._cells[node].memory, self._cells[source].memory), key=len)
            if small is not large:
                large |= small
                for cell in small:
                    cell.memory = large

    def check_alone(self, node: fx.Node, source: fx.Node, unclear: bool) -> None:
        """Whether ``node`` may change ``source``: nobody reads its memory later by another value. ``unclear`` is a
        change that makes a new value of a number, but not of a tensor: then nobody may read it later at all."""
        cell, now = self._cells[source], self._place[node]
        memory = cell.memory
        for other in list(memory):
            if other.last <= now and other is not cell:
                memory.remove(other)
            elif other.last > now and (other is not cell or unclear):
                raise SharedMemory(
                    f"{node.name} changes in place what {other.node.name} may share and what is read again after it; "
                    "write it without the change in place"
                )


def own_tensor_changed(graph: fx.Graph) -> str:
    """A parameter or buffer that a graph changes in place, itself or by a view of it; "" if none."""
    for node in graph.nodes:
        changed = argument_changed_in_place(node, None) if node.op in ("call_function", "call_method") else None
        while changed is not None and changed.op in ("call_function", "call_method") and not makes_new(changed, None):
            changed = next(iter(changed.all_input_nodes), None)
        if changed is not None and changed.op == "get_attr":
            return str(changed.target)
    return ""


def argument_changed_in_place(node: fx.Node, module: nn.Module | None) -> fx.Node | None:
    """The argument that this call changes in place."""
    target: Any = node.target
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    in_place = (
        getattr(module, "inplace", False) is True
        or (module is None and (target in IN_PLACE or (name.endswith("_") and not name.endswith("__"))))
        or (module is None and _asked_in_place(node))
    )
    if "out" in node.kwargs:
        raise SharedMemory(f"{node.name} writes into its argument out=; write it without")
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return first if in_place and isinstance(first, fx.Node) else None


def _asked_in_place(node: fx.Node) -> bool:
    """Whether the call was given ``inplace=True``, by name or by place."""
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a method's name, or a builtin without a signature: none of them has the argument
        return False
    return bool(bound.arguments.get("inplace", False))
