"""cigl.save and cigl.load: a model as one small file, and back without its class."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cigl.calibrate import TemperatureScaled
from cigl.common.copying import deep_copy, unwrap
from cigl.common.errors import CiglError, CiglWarning, unknown
from cigl.common.preprocessing import Preprocessing
from cigl.common.text import one_line
from cigl.runtime.compile.exporting import CONSTANT, Examples
from cigl.runtime.engine import SparseInference, engine_of, sparse_inference
from cigl.runtime.format import container
from cigl.runtime.format.container import Damaged
from cigl.runtime.format.decode import decode_graph
from cigl.runtime.format.encode import Unsupported, encode_graph
from cigl.runtime.format.entries import entries, read_entries
from cigl.runtime.format.graph import LOGITS, Graph
from cigl.runtime.format.tensors import count_nonzero, named_tensors, pack, same_bits, unpack
from cigl.runtime.remembered import recalled

_ENGINES = ("sparse", "dense")
_DESCRIBED = ("architecture", "outside", "temperature", "report", "plan", "about")


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    half: bool = False,
    temperature: Any = None,
    report: Any = None,
    plan: Any = None,
    about: Mapping[str, Any] | None = None,
    example_inputs: Examples | None = None,
    classes: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
) -> None:
    """Write the model to one file: of sparse tensors only the non-zeros. The model stays as it is.

    The model may be in training: what is written is M*W. Where an operation is outside of what a file can hold, a
    warning says which, and the file has the weights alone.

    Args:
        model: The model.
        path: Of the file, usually with the suffix ``.cigl``.
        half: Store weights in fp16.
        temperature: What ``cigl.load`` divides the logits by: a number, or what ``fit_temperature`` returned. A
            ``TemperatureScaled`` model has its own.
        report: Of ``cigl.evaluate``, to be read with ``cigl.runtime.describe``.
        plan: What ``fast.plan()`` returned, to be followed by ``cigl.load``.
        about: Plain data of yours.
        example_inputs: A tuple of inputs or a dict of keyword inputs, for models that torch.fx can't follow; see
            ``sparse_inference``.
        classes: The names of the classes, in the order of their numbers.
        preprocessing: How an image becomes an input, for ``fast.predict`` and `cigl predict`.

    >>> import os
    >>> import torch
    >>> from torch import nn
    >>> from cigl import load, save
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.cigl")
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> save(model, path)
    >>> x = torch.randn(2, 4)
    >>> bool(torch.equal(load(path, engine="dense")(x), model(x)))
    True
    """
    if not isinstance(model, nn.Module):
        raise CiglError(f"save takes a torch.nn.Module, not a {type(model).__name__}.")
    if isinstance(model, SparseInference):
        raise CiglError(
            "save the model that the engine was made from; save(model, path, plan=fast.plan()) keeps its plan."
        )
    temperature = unwrapped_temperature(model, temperature)
    model, _ = without_temperature(model)
    if example_inputs is None:
        example_inputs = recalled(model)
    plain = plain_copy(model)
    description: dict[str, Any] = {
        "architecture": {"class": type(model).__name__, "text": str(plain)},
        "tensors": None,
        "graph": None,
        "outside": None,
        "temperature": temperature,
        "report": report.to_dict() if hasattr(report, "to_dict") else report,
        "plan": plan,
        "about": about,
        **entries(classes, preprocessing),
    }
    try:
        description["graph"] = graph = _graph(plain, example_inputs)
        if temperature is not None and not _has_logits(graph["nodes"][-1]["args"][0]):
            raise CiglError("a temperature needs a model that returns one tensor, the logits: leave temperature out.")
    except Unsupported as unsupported:
        description["outside"] = str(unsupported)
        warnings.warn(
            f"{path} has the model's weights alone, because {unsupported}: load it with cigl.load(path, into=model).",
            CiglWarning,
            stacklevel=2,
        )
    stored, description["tensors"] = pack(plain, half)
    container.write(path, stored, description)


def load(
    path: str | os.PathLike[str],
    *,
    engine: Literal["sparse", "dense"] = "sparse",
    into: nn.Module | Callable[[], nn.Module] | None = None,
    calibrated: bool = True,
    example_inputs: Examples | None = None,
) -> nn.Module:
    """The saved model on the CPU, in eval mode and without gradients; safe on a file from anyone.

    If the file says how images are preprocessed, ``fast.predict(images)`` returns labels and probabilities.

    Args:
        path: Of a file that ``cigl.save`` or `cigl export` wrote.
        engine: "sparse" for sparse kernels, "dense" for plain torch.
        into: For a file that has the weights alone: a model of the same architecture, which is filled, or a function
            that makes one.
        calibrated: Divide the logits by the file's temperature, if it has one.
        example_inputs: With ``into``, as for ``sparse_inference``.

    >>> import os
    >>> import torch
    >>> from torch import nn
    >>> from cigl import load, save
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.cigl")
    >>> save(nn.Linear(4, 3), path, temperature=2.0)
    >>> fast = load(path)
    >>> fast(torch.randn(5, 4)).softmax(-1).shape
    torch.Size([5, 3])
    """
    if engine not in _ENGINES:
        raise unknown("engine", engine, _ENGINES)
    with _undamaged(path):
        stored, description = container.read(path)
        tensors, parameters = unpack(stored, description.get("tensors"))
        temperature = description.get("temperature")
        if not _is_temperature(temperature):
            raise Damaged("its temperature is not a positive number")
        classes, preprocessing = read_entries(description)
        applied = temperature if calibrated else None
        if into is None and description.get("graph") is not None:
            model: nn.Module = decode_graph(description["graph"], tensors, parameters, applied)
    odd = {each.dtype for each in tensors.values() if each.is_floating_point()} - {torch.float32}
    if odd and engine == "sparse":
        raise CiglError(
            f"{path} has tensors in {odd.pop()}, but sparse kernels compute in float32: load it with engine='dense'."
        )
    if into is not None:
        model = _fill(into, tensors, path)
    elif description.get("graph") is None:
        raise CiglError(
            f"{path} has weights alone, because {description.get('outside')}: pass a model of its architecture, "
            "cigl.load(path, into=model)."
        )
    if engine == "sparse":
        # A plan may name the division by the temperature, which is in the model only if it was rebuilt with it.
        fits = temperature is None or (calibrated and into is None)
        try:
            plan = description.get("plan") if fits else None
            make = sparse_inference if into is not None else engine_of  # nobody else has the file's model
            model = make(model, plan=plan, example_inputs=example_inputs)
            model.classes, model.preprocessing = classes, preprocessing
        except Exception as error:
            if into is not None and not isinstance(error, CiglError):
                raise  # an error of the caller's own model
            raise CiglError(
                f"{path} can't be loaded on the engine: {one_line(error)}. engine='dense' loads it as it is."
            ) from error
    if into is not None and applied is not None:
        model = TemperatureScaled(model, applied).eval()
    return model


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of its model: sizes, architecture, temperature, report, plan, about, classes, preprocessing.

    Args:
        path: Of a file that ``cigl.save`` or `cigl export` wrote.

    >>> import os
    >>> from torch import nn
    >>> from cigl import save
    >>> from cigl.runtime import describe
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.cigl")
    >>> save(nn.Linear(4, 3, bias=False), path, classes=["cat", "dog", "deer"])
    >>> found = describe(path)
    >>> found["parameters"], found["nonzeros"], found["classes"]
    (12, 12, ['cat', 'dog', 'deer'])
    """
    with _undamaged(path):
        stored, description = container.read(path)
        tensors, parameters = unpack(stored, description.get("tensors"))
        known = entries(*read_entries(description))
    return {
        "bytes": os.path.getsize(path),
        "parameters": sum(tensors[name].numel() for name in parameters),
        "nonzeros": sum(count_nonzero(tensors[name]) for name in parameters),
        **{name: description.get(name) for name in _DESCRIBED},
        **known,
    }


@contextmanager
def _undamaged(path: Any) -> Iterator[None]:
    """Around what reads a file: where its content is at fault, an error with its name."""
    try:
        yield
    except (Damaged, RuntimeError, MemoryError) as error:  # the latter two: not enough memory
        raise CiglError(f"{path} can't be loaded: {' '.join(str(error).split())}. Copy or save it again.") from error


def without_temperature(model: nn.Module) -> tuple[nn.Module, float | None]:
    """The user's own module inside of wrappers, and the temperature that one of them divides by."""
    temperature = None
    while True:
        model = unwrap(model)
        if isinstance(model, TemperatureScaled):
            temperature = float(model.temperature) * (temperature or 1.0)
            model = model.model
        elif isinstance(model, Graph) and model._graph_temperature is not None:
            temperature = model._graph_temperature * (temperature or 1.0)
            model = copy.copy(model)  # its tensors are the same
            model._graph_temperature = None
        else:
            return model, temperature


def unwrapped_temperature(model: nn.Module, given: Any) -> float | None:
    """The temperature to save with a model: the one given, or that of the model's wrapper."""
    _, own = without_temperature(model)
    given = getattr(given, "value", given)  # of cigl.calibrate.fit_temperature
    if given is not None and own is not None:
        raise CiglError(f"the model has a temperature of its own ({own:g}): leave temperature out.")
    temperature: float | None = own if given is None else given
    if not _is_temperature(temperature):
        raise CiglError(f"temperature is {temperature!r}: it must be a number, positive and finite.")
    return temperature


def plain_copy(model: nn.Module) -> nn.Module:
    """In a copy weights are M*W also in the middle of training, and eval mode is nobody else's concern."""
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):  # DTensors
        raise CiglError("the model is sharded: take a whole one, sparse.finalize(whole=True).")
    return deep_copy(model).eval()


def _graph(model: nn.Module, example_inputs: Examples | None) -> dict[str, Any]:
    """The graph, if a model can be made from it again."""
    graph = encode_graph(model, example_inputs)
    parameters = set(dict(model.named_parameters(remove_duplicate=False)))
    try:
        decode_graph(graph, {name: tensor.detach() for name, tensor in named_tensors(model).items()}, parameters)
    except Damaged as error:
        raise Unsupported(str(error)) from error
    return graph


def _has_logits(output: Any) -> bool:
    """Whether it is one tensor, or has one of this name."""
    by_name = next((output[kind] for kind in ("dict", "named") if isinstance(output, dict) and kind in output), None)
    found = output if by_name is None else by_name.get(LOGITS)
    return isinstance(found, dict) and "node" in found


def _is_temperature(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value <= sys.float_info.max)


@torch.no_grad()
def _fill(into: nn.Module | Callable[[], nn.Module], tensors: Mapping[str, Tensor], path: Any) -> nn.Module:
    """Copy the tensors into a model that has them all, or change nothing."""
    model = into if isinstance(into, nn.Module) else into()
    if not isinstance(model, nn.Module):
        raise CiglError(f"into made a {type(model).__name__}: it must be a torch.nn.Module, or make one.")
    inner, own = without_temperature(model)
    if own is not None:
        raise CiglError(
            "into has a temperature of its own: pass the model inside, the file's temperature goes with it."
        )
    wanted = named_tensors(inner)
    tensors = {name: each for name, each in tensors.items() if name in wanted or not name.startswith(CONSTANT)}
    for name in [*wanted, *tensors]:
        if name not in tensors:
            raise _other(path, f"{name} is in the model, but not in the file")
        if name not in wanted:
            raise _other(path, f"{name} is in the file, but not in the model")
        for what in ("shape", "dtype"):
            has, needs = getattr(tensors[name], what), getattr(wanted[name], what)
            if has != needs:
                raise _other(path, f"{name} has the {what} {_short(has)} in the file, but {_short(needs)} in the model")
    first: dict[int, str] = {}
    for name, tensor in wanted.items():
        same = first.setdefault(id(tensor), name)
        if not same_bits(tensors[name], tensors[same]):
            raise _other(path, f"{name} and {same} are one tensor in the model, but two in the file")
    for name, tensor in wanted.items():
        tensor.copy_(tensors[name])
    return model.eval()


def _other(path: Any, difference: str) -> CiglError:
    return CiglError(f"{path} is of another architecture: {difference}. Nothing was changed.")


def _short(value: Any) -> Any:
    return list(value) if isinstance(value, torch.Size) else value
