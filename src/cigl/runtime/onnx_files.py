"""cigl.export_onnx: a model for other engines."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cigl.calibrate.corrections.ensemble import logits_of
from cigl.common import files
from cigl.common.errors import CiglError
from cigl.common.extras import from_extra
from cigl.common.preprocessing import Preprocessing
from cigl.common.text import first_line
from cigl.runtime.compile.exporting import Examples, arguments
from cigl.runtime.engine import SparseInference
from cigl.runtime.format.entries import checked_entries, entries
from cigl.runtime.network.inputs import parameters
from cigl.runtime.saving import plain_copy, unwrapped_temperature, without_temperature

OUTPUTS = ["logits", "probabilities"]


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: Examples | None = None,
    temperature: Any = None,
    classes: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
) -> None:
    """Write the model as an ONNX file, zeros included. The model stays as it is.

    The outputs are ``logits`` and ``probabilities``, the softmax of the logits divided by the temperature. The number
    of inputs in a batch is left open. Class names, preprocessing and temperature go into the file's metadata, as JSON.

    Args:
        model: The model that was trained.
        path: Of the file, usually with the suffix ``.onnx``.
        example_inputs: A tuple or a dict of keyword inputs, which give all sizes but that of the batch;
            ``preprocessing`` knows them for images.
        temperature: A number, or what ``fit_temperature`` returned. A ``TemperatureScaled`` model has its own.
        classes: Their names, in the order of their numbers.
        preprocessing: How an image becomes an input.

    >>> import os
    >>> import torch
    >>> from torch import nn
    >>> from cigl import export_onnx
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    >>> export_onnx(nn.Linear(4, 3), path, example_inputs=(torch.randn(2, 4),), temperature=1.3)
    >>> os.path.getsize(path) > 0
    True
    """
    if not isinstance(model, nn.Module) or isinstance(model, SparseInference):
        raise CiglError(f"export_onnx takes the torch.nn.Module that was trained, not a {type(model).__name__}.")
    with from_extra("onnx", "ONNX files"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    known, prepared = checked_entries(classes, preprocessing)
    if example_inputs is None:
        if prepared is None:
            raise CiglError(
                "the model's inputs are not known: pass example_inputs=(x,), or the preprocessing of its images."
            )
        example_inputs = (torch.zeros(1, *prepared.shape),)
    temperature = unwrapped_temperature(model, temperature)
    plain = plain_copy(without_temperature(model)[0])
    content = _converted(plain, arguments(example_inputs), temperature, _metadata(known, prepared, temperature))
    files.write(Path(path), content)


class _WithProbabilities(nn.Module):
    """Called with the tensors among the example inputs, each by position."""

    def __init__(self, model: nn.Module, examples: Any, temperature: float | None):
        super().__init__()
        self.model, self.temperature = model, temperature
        self.leaves, self.structure = pytree.tree_flatten(examples)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        logits = logits_of(self.model(*args, **kwargs))
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, (wide if self.temperature is None else wide / self.temperature).softmax(-1)


def _metadata(
    classes: Sequence[str] | None, preprocessing: Preprocessing | None, temperature: float | None
) -> dict[str, str]:
    found = entries(classes, preprocessing) | {"temperature": temperature}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items() if value is not None}


def _converted(
    model: nn.Module,
    examples: tuple[tuple[Any, ...], dict[str, Any]],
    temperature: float | None,
    metadata: dict[str, str],
) -> bytes:
    named = [(path, leaf) for path, leaf in pytree.tree_flatten_with_path(examples)[0] if isinstance(leaf, Tensor)]
    # torch.export takes a size of 1 for a constant, so a batch must have two.
    tensors = tuple(torch.cat([x, x]) if x.ndim and len(x) == 1 else x for _, x in named)
    batch = torch.export.Dim("batch")
    try:
        with quiet(), torch.no_grad():
            made: Any = torch.onnx.export(
                _WithProbabilities(model, examples, temperature).eval(),
                tensors,
                dynamo=True,
                verbose=False,
                input_names=_names(model, [path for path, _ in named]),
                output_names=list(OUTPUTS),
                dynamic_shapes={"tensors": tuple({0: batch} if x.ndim else {} for x in tensors)},
            )
            if any(len(each.shape) and isinstance(each.shape[0], int) for each in made.model.graph.inputs):
                raise CiglError("the model takes batches of one size only, which can't be left open in an ONNX file.")
            made.model.metadata_props.update(metadata)
            content: bytes = made.model_proto.SerializeToString()
    except CiglError:
        raise
    except Exception as error:  # a forward and an exporter can fail in many ways
        raise CiglError(f"the model can't be exported to ONNX: {_reason(error)}.") from error
    return content


def _names(model: nn.Module, paths: Sequence[Any]) -> list[str]:
    """Of the inputs: as the model's forward has them; a single one by position is just the input."""
    order, _ = parameters(model)
    found = []
    for kind, first, *inside in ([getattr(key, "key", getattr(key, "idx", 0)) for key in path] for path in paths):
        name = first if kind == 1 else order[first] if first < len(order) else f"input_{first}"
        found.append("_".join(map(str, [name, *inside])))
    return ["input"] if len(paths) == 1 and paths[0][0].idx == 0 else found


def _reason(error: BaseException) -> str:
    """The first line of what it began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error, 200).rstrip(".")


@contextmanager
def quiet() -> Iterator[None]:
    """torch's exporter talks a lot: it warns, logs and prints."""
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
