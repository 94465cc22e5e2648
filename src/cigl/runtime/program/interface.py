"""What Python and the kernels share: structures and kinds of steps, mirrored from kernels/program.h.

``described`` says the same of this side as ``cigl_interface`` does of the compiled one; library.py compares them.
"""

from __future__ import annotations

import ctypes

from cigl.runtime.network.operations import ACTIVATIONS
from cigl.runtime.program.steps import Kind

_Pair = ctypes.c_int64 * 2


class View(ctypes.Structure):
    """Where a value lies in the arena."""

    _fields_ = [(name, ctypes.c_int64) for name in ("at", "row", "channel", "channels", "height", "width")]


class NormStruct(ctypes.Structure):
    """A batch norm in training."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "running_mean", "running_var")),
        *((name, ctypes.c_double) for name in ("momentum", "eps")),
        *((name, ctypes.c_void_p) for name in ("mean", "inverse", "scale", "shift")),
        *((name, ctypes.c_void_p) for name in ("by_gradient", "by_value", "by_one")),
        *((name, ctypes.c_void_p) for name in ("weight_gradient", "bias_gradient")),
    ]


class StepStruct(ctypes.Structure):
    """A step with its places in the arena and pointers to its weights."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("kind", "activation")),
        *((name, View) for name in ("in_", "add", "out", "normed")),
        *((name, _Pair) for name in ("kernel", "stride", "padding")),
        *((name, ctypes.c_int64) for name in ("count_padding", "groups", "blocks", "together")),
        *((name, ctypes.c_void_p) for name in ("rows", "firsts", "offsets", "values", "bias", "scale", "shift")),
        ("eps", ctypes.c_double),
        *((name, View) for name in ("multiplier", "other")),
        *((name, ctypes.c_void_p) for name in ("scale2", "shift2", "mean", "mean2")),
        *((name, ctypes.c_void_p) for name in ("sums", "target", "places", "ranks", "off", "norm")),
        *((name, ctypes.c_int64) for name in ("count", "kept", "outside", "per_batch")),
        *((name, ctypes.c_int64) for name in ("banded", "band", "lead", "rolling", "before")),
    ]


class ProgramStruct(ctypes.Structure):
    _fields_ = [
        ("steps", ctypes.POINTER(StepStruct)),
        *((name, ctypes.c_int64) for name in ("count", "images", "lanes", "spread", "arena", "threads")),
        *((name, ctypes.c_int64) for name in ("kept", "groups")),
    ]


class RecurrentStruct(ctypes.Structure):
    """A layer of an LSTM or GRU in one direction."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("gates", "steps", "images", "hidden", "backwards")),
        *((name, ctypes.c_void_p) for name in ("rows", "columns", "values", "bias", "in_")),
        *((name, ctypes.c_int64) for name in ("in_step", "in_image")),
        *((name, ctypes.c_void_p) for name in ("state", "cell", "out")),
        *((name, ctypes.c_int64) for name in ("out_step", "out_image", "threads")),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "View": View,
    "Norm": NormStruct,
    "Step": StepStruct,
    "Program": ProgramStruct,
    "Recurrent": RecurrentStruct,
}


def described() -> str:
    """The kinds in their order, and offset and size of every structure and field, a line each."""
    names = ["NONE", *(name.upper() for name in ACTIVATIONS)]
    lines = [" ".join(["kinds", *(kind.name for kind in Kind)]), " ".join(["activations", *names])]
    for name, structure in STRUCTURES.items():
        lines.append(f"{name} 0 {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            lines.append(f"{name}.{field.rstrip('_')} {place.offset} {place.size}")  # in_: `in` is a keyword here
    return "\n".join(lines) + "\n"
