"""The compiled kernels: found beside this file, compared with interface.py, called through a plain C interface.

``CIGL_ISA=portable|avx2|avx512`` forces an instruction set; otherwise it is the best that the processor has and takes
whole. AVX2 is faster than AVX-512 where that is split in halves. Never a clock: the same processor, the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import sys
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import torch as torch  # first: the kernels are linked to no OpenMP and find torch's (setup.py)

from cigl.common.errors import CiglError
from cigl.runtime.program import interface

ABI = 7
ISAS = ("avx512", "avx2", "portable")  # the best first
_FOLDER = Path(__file__).parent


def available() -> bool:
    """Whether sparse layers run on kernels here; ``reason()`` says why not."""
    return reason() == ""


def reason() -> str:
    """Why there are no kernels: one sentence, or nothing if there are."""
    return _load()[1]


def get() -> ctypes.CDLL:
    library, missing = _load()
    if library is None:
        raise CiglError(missing)
    return library


def isa() -> str:
    """The instruction set that is used."""
    name = forced()
    if not name:
        wide = has_whole_vectors(*processor())
        return next(name for name in ISAS if lanes(name) and (wide or name != "avx512" or not lanes("avx2")))
    if name not in ISAS:
        raise CiglError(f"CIGL_ISA is {name!r}, but must be one of {', '.join(ISAS)}, or not set.")
    if not lanes(name):
        raise CiglError(f"CIGL_ISA is {name!r}, which this processor does not have: unset it.")
    return name


def forced() -> str:
    """The instruction set that the environment asks for, or nothing."""
    return os.environ.get("CIGL_ISA", "")


def lanes(name: str) -> int:
    """Floats in a vector of an instruction set; 0 where the processor does not have it."""
    return int(get().cigl_lanes(name.encode()))


def fma_peak(seconds: float = 0.2, name: str = "") -> float:
    """The most floating-point operations per second that one core reaches with multiply-adds, measured: with the
    instruction set that is used, or with this one."""
    return float(get().cigl_fma_peak((name or isa()).encode(), seconds))


@functools.cache
def processor() -> tuple[str, int, int]:
    """Vendor, family and model of an x86 processor as cpuid has them."""
    _, *vendor = _cpuid(0)
    signature = _cpuid(1)[0]
    family = (signature >> 8 & 0xF) + (signature >> 20 & 0xFF)
    name = struct.pack("<3I", vendor[0], vendor[2], vendor[1]).decode("ascii", "replace")
    return name.strip("\0"), family, signature >> 4 & 0xF | signature >> 12 & 0xF0


def has_whole_vectors(vendor: str, family: int, model: int) -> bool:
    """Whether a processor with AVX-512 loads and multiplies 512 bits at once.

    Zen 4 takes them in halves, and so do the Zen 5 of laptops (Strix Point and Krackan).

    >>> has_whole_vectors("AuthenticAMD", 0x19, 0x11), has_whole_vectors("AuthenticAMD", 0x1A, 0x02)
    (False, True)
    """
    laptop = 0x20 <= model < 0x40 or 0x60 <= model < 0x70
    return vendor != "AuthenticAMD" or family > 0x1A or (family == 0x1A and not laptop)


def _cpuid(leaf: int) -> list[int]:
    registers = (ctypes.c_uint32 * 4)()
    get().cigl_cpuid(leaf, registers)
    return list(registers)


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    file = _FOLDER / "_kernels.so"
    if not file.exists():
        return None, (
            "cigl was installed without its sparse kernels, so that everything runs dense: install a C++ compiler "
            "(g++ or clang), then run `pip install --force-reinstall --no-deps --no-cache-dir cigl`."
        )
    try:
        library = _open(file)
        library.cigl_abi.restype = ctypes.c_int64
        library.cigl_interface.restype = ctypes.c_char_p
        version, theirs = library.cigl_abi(), library.cigl_interface().decode()
    except (OSError, AttributeError) as error:
        if _misses_openmp(error):
            return None, (
                "the sparse kernels need OpenMP, which this build of torch lacks, so that everything runs dense: "
                "install a build of torch for which torch.backends.openmp.is_available() is true."
            )
        return None, f"the sparse kernels in {file} can't be loaded ({error}): install cigl again."
    if version != ABI:
        return None, f"the sparse kernels in {file} are of version {version}, not {ABI}: install cigl again."
    if difference := _difference(interface.described(), theirs):
        return None, f"the sparse kernels in {file} were built from other sources ({difference}): install cigl again."
    library.cigl_lanes.restype = ctypes.c_int64
    library.cigl_lanes.argtypes = [ctypes.c_char_p]
    library.cigl_cpuid.restype = None
    library.cigl_cpuid.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)]
    library.cigl_fma_peak.restype = ctypes.c_double
    library.cigl_fma_peak.argtypes = [ctypes.c_char_p, ctypes.c_double]
    library.cigl_run.restype = ctypes.c_int64
    program = ctypes.POINTER(interface.ProgramStruct)
    pointers, seconds = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_double)
    library.cigl_run.argtypes = [ctypes.c_char_p, program, ctypes.c_void_p, pointers, pointers, seconds]
    library.cigl_recur.restype = ctypes.c_int64
    library.cigl_recur.argtypes = [ctypes.c_char_p, ctypes.POINTER(interface.RecurrentStruct)]
    library.cigl_train.restype = ctypes.c_int64
    steps = [ctypes.c_int64, ctypes.c_int64]
    library.cigl_train.argtypes = [ctypes.c_char_p, program, *steps, ctypes.c_void_p, pointers, pointers, seconds]
    pointer, whole, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.cigl_sgd.restype = library.cigl_adam.restype = None
    library.cigl_sgd.argtypes = [pointer] * 5 + [whole] + [number] * 4 + [whole] * 3
    library.cigl_adam.argtypes = [pointer] * 6 + [whole] + [number] * 6 + [whole] * 3
    library.cigl_gather.restype = library.cigl_pack.restype = library.cigl_draw.restype = None
    library.cigl_gather.argtypes = [pointer] * 3 + [whole]
    library.cigl_pack.argtypes = [pointer] * 5 + [whole] * 2
    library.cigl_draw.argtypes = [pointer, whole, ctypes.c_uint64, ctypes.c_uint32, pointer, whole]
    return library, ""


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        if sys.platform != "linux" or not _misses_openmp(error):
            raise
    _share_openmp()
    return ctypes.CDLL(str(file))


def _misses_openmp(error: Exception) -> bool:
    return re.search("undefined symbol: (GOMP|omp)_", str(error)) is not None


def _share_openmp() -> None:
    """The OpenMP that torch has loaded, made visible to the kernels: some builds of torch keep it to themselves."""
    beside = Path(torch.__file__).parent.glob("lib/lib*omp*.so*")
    for name in (*map(str, beside), "libgomp.so.1", "libiomp5.so", "libomp.so", "libomp.so.5"):
        with suppress(OSError):  # it is not there, or nobody has loaded it
            ctypes.CDLL(name, mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _difference(ours: str, theirs: str) -> str:
    """The first line in which two descriptions of the interface differ, or nothing."""
    for here, there in zip_longest(ours.splitlines(), theirs.splitlines(), fillvalue="nothing"):
        if here != there:
            return f"{there!r} where Python has {here!r}"
    return ""
