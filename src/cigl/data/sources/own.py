"""Anyone's own dataset: tensors, or ``package.module:function`` that returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.common.preprocessing import Preprocessing
from cigl.common.references import made_by
from cigl.data.sources.memory import MemorySplit, Vectors
from cigl.data.splits.split import Source


def from_tensors(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    name: str = "tensors",
    class_names: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
) -> Source:
    """A dataset in memory.

    Args:
        train_x: Inputs to learn from, of shape (examples, ...), used as they are.
        train_y: Their labels, whole numbers from 0.
        test_x: Inputs to be judged by.
        test_y: Their labels.
        name: What it is called in messages.
        class_names: In the order of their numbers.
        preprocessing: How the inputs were made from images, so that `cigl predict` can make more of them.

    >>> import torch
    >>> from cigl.data import from_tensors
    >>> source = from_tensors(torch.randn(100, 8), torch.arange(100) % 3, torch.randn(30, 8), torch.arange(30) % 3)
    >>> source.classes, source.shape, len(source.train), len(source.test)
    (3, (8,), 100, 30)
    """
    train, test = _checked(name, "training", train_x, train_y), _checked(name, "test", test_x, test_y)
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = [tuple(x.shape[1:]) for x, _ in (train, test)]
        raise CiglError(f"{name} has training inputs of shape {shapes[0]} and test inputs of shape {shapes[1]}.")
    classes = 1 + max(int(y.max()) for _, y in (train, test))
    classes = max(classes, len(class_names))
    first, second = (MemorySplit(Vectors(x), y) for x, y in (train, test))
    return Source(name, classes, tuple(train[0].shape[1:]), first, second, tuple(class_names), preprocessing)


def _checked(name: str, part: str, inputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = (torch.as_tensor(each).detach().cpu() for each in (inputs, labels))
    except (TypeError, ValueError, RuntimeError):
        raise CiglError(f"the {part} data of {name} must be tensors or arrays of numbers.") from None
    if x.ndim < 2 or not len(x) or y.shape != x.shape[:1]:
        raise CiglError(
            f"the {part} data of {name} must be inputs (examples, ...) and a label for each, not {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or int(y.min()) < 0:
        raise CiglError(f"the {part} labels of {name} must be whole numbers from 0, one per class.")
    if not bool(torch.isfinite(x).all()):
        raise CiglError(f"the {part} inputs of {name} have NaN or infinity.")
    return x.float(), y.long()


def from_reference(name: str) -> Source:
    """Call the function, which takes nothing and returns a Source or (train_x, train_y, test_x, test_y)."""
    made = made_by(name, "dataset")
    if isinstance(made, Source):
        return made
    if not isinstance(made, (tuple, list)) or len(made) != 4:
        raise CiglError(
            f"{name} returned {type(made).__name__}, but must return (train_x, train_y, test_x, test_y) or a "
            "cigl.data.Source."
        )
    train_x, train_y, test_x, test_y = made
    return from_tensors(train_x, train_y, test_x, test_y, name=name)
