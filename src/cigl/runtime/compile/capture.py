"""A model's operations as a graph, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from cigl.runtime.network.inputs import Signature

HINT = "; pass example_inputs=(x,), with an input x, and torch.export captures it"


@dataclass
class Capture:
    """``structure`` is torch's TreeSpec of the output where the graph returns a flat list."""

    graph: fx.Graph
    signature: Signature
    structure: Any = None
    notes: list[str] = field(default_factory=list)


class Captured(nn.Module):
    """A model that is a graph already."""

    def capture(self) -> Capture:
        raise NotImplementedError


def attribute(model: nn.Module, path: str) -> Any:
    """What a graph's node of the model's own stands for."""
    found = attrgetter(path)(model)
    return found.detach() if isinstance(found, Tensor) else found


class Named(dict[str, Any]):
    """Outputs by name, key or place, as Transformers' models return them, where their own class is not at hand.

    >>> output = Named(logits=3)
    >>> output.logits, output["logits"], output[0]
    (3, 3, 3)
    """

    def __getitem__(self, key: str | int) -> Any:
        return tuple(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this output has {', '.join(self)}, but no {name}") from None


pytree.register_pytree_node(
    Named,
    lambda named: (list(named.values()), list(named)),
    lambda values, names: Named(zip(names, values, strict=True)),
    serialized_type_name="cigl.Named",
)
