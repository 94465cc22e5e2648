"""The compiled library: found or not, of the right version, and the instruction set that is asked for."""

import ctypes
import os
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest
import torch

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.weights import Weight
from cigl.runtime.program import interface, library
from cigl.runtime.program.program import Program

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fresh():
    """The library is looked for anew, before and after."""
    library._load.cache_clear()
    yield
    library._load.cache_clear()


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    command = [sys.executable, "setup.py", "build", "--build-lib", "out"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_the_kernels_are_there():
    assert library.available(), library.reason()
    assert library.reason() == ""
    assert library.lanes("portable") == 8
    assert library.isa() in library.ISAS
    assert library.fma_peak(0.01) > 1e8


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and only there the kernels use OpenMP")
TWO_THREADS = """
import ctypes, os, pathlib, re

def tasks():
    return set(os.listdir("/proc/self/task"))

def run_with_two_threads():
    program = Program(1024, threads=2)
    [y] = program.record(op.Linear(Weight(torch.ones(128, 16), None)), program.input(16))
    program.output(y)
    program.finish()
    [y] = program.run(torch.ones(1024, 16))  # too small for torch to use threads
    assert y.eq(16).all()
"""


IMPORTS = """
import torch
from cigl.runtime.network import operations as op
from cigl.runtime.network.weights import Weight
from cigl.runtime.program import library
from cigl.runtime.program.program import Program
"""


def in_python(code: str) -> str:
    variables = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(
        [sys.executable, "-c", TWO_THREADS + code], env=variables, capture_output=True, text=True, check=True
    ).stdout


@LINUX
def test_the_kernels_use_the_threads_of_torch():
    """A second OpenMP in the process would start threads of its own, which compete for the same cores."""
    said = in_python(
        IMPORTS
        + """
before = tasks()
run_with_two_threads()
[second] = tasks() - before
ticks = lambda: int(pathlib.Path(f"/proc/self/task/{second}/schedstat").read_text().split()[0])
used = ticks()
for _ in range(100):
    run_with_two_threads()
assert ticks() > used, "the second thread works"
torch.ones(1 << 22).add_(1)  # large enough for torch to use its threads
assert tasks() == before | {second}, "torch has started no thread of its own"
maps = pathlib.Path("/proc/self/maps").read_text()
print(*set(re.findall(r"/.*/lib[a-z]*omp[^/]*[.]so.*", maps)), sep="|")
"""
    )
    assert Path(said.strip()).parent == Path(torch.__file__).parent / "lib"


@LINUX
def test_the_openmp_of_torch_is_found_where_torch_does_not_share_it():
    in_python(
        """
everyone, modes = ctypes.CDLL, []
class Private(everyone):
    def __init__(self, name, mode=0, *arguments, **keywords):
        modes.append(mode)
        super().__init__(name, 0, *arguments, **keywords)
ctypes.CDLL = Private
import torch
ctypes.CDLL = everyone
assert ctypes.RTLD_GLOBAL in modes, "torch shares its OpenMP by ctypes"
"""
        + IMPORTS
        + """
try:
    ctypes.CDLL(str(library._FOLDER / "_kernels.so"))
except OSError as error:
    assert re.search("undefined symbol: (GOMP|omp)_", str(error))
else:
    raise AssertionError("it was shared")
assert library.available(), library.reason()
before = tasks()
run_with_two_threads()
assert len(tasks() - before) == 1
"""
    )


def test_without_openmp_the_reason_says_what_to_do(fresh, monkeypatch):
    def refuse(*_, **__):
        raise OSError("_kernels.so: undefined symbol: GOMP_parallel")

    monkeypatch.setattr(library.ctypes, "CDLL", refuse)
    assert not library.available()
    assert "install a build of torch" in library.reason()


def test_without_a_library_the_reason_says_what_to_do(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    assert not library.available()
    assert "install a C++ compiler" in library.reason()
    program = Program(1, 1)
    [y] = program.record(op.Linear(Weight(torch.ones(1, 2), None)), program.input(2))
    program.output(y)
    with pytest.raises(CiglError, match="install a C\\+\\+ compiler"):
        program.finish()


def test_a_broken_library_is_as_good_as_none(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    (tmp_path / "_kernels.so").write_text("not a library")
    assert not library.available()
    assert "can't be loaded" in library.reason()


def test_a_library_of_another_version_is_not_used(fresh, monkeypatch):
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    assert not library.available()
    assert "version" in library.reason()


def test_an_unknown_instruction_set_is_named(monkeypatch):
    monkeypatch.setenv("CIGL_ISA", "mmx")
    with pytest.raises(CiglError, match="must be one of avx512, avx2, portable"):
        library.isa()


@pytest.mark.parametrize(
    ("processor", "best"),
    [
        (("AuthenticAMD", 0x19, 0x61), "avx2"),  # Zen 4
        (("AuthenticAMD", 0x1A, 0x24), "avx2"),  # Zen 5 of a laptop
        (("AuthenticAMD", 0x1A, 0x44), "avx512"),
        (("GenuineIntel", 6, 0x8F), "avx512"),
    ],
)
def test_wide_vectors_are_used_where_the_processor_takes_them_at_once(processor, best, monkeypatch):
    """Decided by the model of the processor, never by a clock: training has the same bits each time."""
    monkeypatch.delenv("CIGL_ISA", raising=False)
    monkeypatch.setattr(library, "processor", lambda: processor)
    monkeypatch.setattr(library, "lanes", lambda name: 8)
    assert library.isa() == best
    monkeypatch.setenv("CIGL_ISA", "avx512")
    assert library.isa() == "avx512"


@pytest.mark.parametrize("missing", library.ISAS)
def test_an_instruction_set_that_the_processor_lacks_is_refused(monkeypatch, missing):
    monkeypatch.setattr(library, "lanes", lambda name: 0 if name == missing else 8)
    monkeypatch.delenv("CIGL_ISA", raising=False)
    monkeypatch.setattr(library, "processor", lambda: ("GenuineIntel", 6, 0x8F))
    assert library.isa() == next(name for name in library.ISAS if name != missing)
    monkeypatch.setenv("CIGL_ISA", missing)
    with pytest.raises(CiglError, match="does not have"):
        library.isa()


def test_the_library_has_no_lanes_for_what_it_does_not_know():
    assert library.lanes("mmx") == 0


# What both sides share


def test_kinds_and_structures_are_those_of_the_library():
    theirs = library.get().cigl_interface().decode()
    assert theirs == interface.described()
    fields = [line.split()[0] for line in theirs.splitlines()]
    for name, structure in interface.STRUCTURES.items():
        assert name in fields
        assert sum(field.startswith(f"{name}.") for field in fields) == len(structure._fields_) > 0


def differs(reason: str) -> bool:
    return "built from other sources" in reason and "install cigl again" in reason


KINDS = [kind.name for kind in interface.Kind]


@pytest.mark.parametrize("names", [[*KINDS[1:], KINDS[0]], KINDS[:-1], [*KINDS, "SIGMOID"]])
def test_other_kinds_of_steps_are_noticed(fresh, monkeypatch, names):
    monkeypatch.setattr(interface, "Kind", IntEnum("Kind", names, start=0))
    assert not library.available()
    assert differs(library.reason())
    assert " ".join(names) in library.reason()


def swapped(fields):
    return [fields[1], fields[0], *fields[2:]]


@pytest.mark.parametrize("structure", interface.STRUCTURES)
@pytest.mark.parametrize(
    "change",
    [
        swapped,
        lambda fields: fields[:-1],
        lambda fields: [*fields, ("more", ctypes.c_int64)],
        lambda fields: [*fields[:-1], (fields[-1][0], ctypes.c_int32)],
    ],
)
def test_other_structures_are_noticed(fresh, monkeypatch, structure, change):
    fields = change(list(interface.STRUCTURES[structure]._fields_))
    other = type("Other", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setitem(interface.STRUCTURES, structure, other)
    assert not library.available()
    assert differs(library.reason())
    assert f"{structure}" in library.reason()


def test_a_library_from_before_this_check_is_not_used(fresh, monkeypatch):
    class Old:
        def __init__(self, path):
            self.cigl_abi = library.functools.partial(int, library.ABI)

    monkeypatch.setattr(library.ctypes, "CDLL", Old)
    assert not library.available()
    assert "install cigl again" in library.reason()


def test_the_package_is_built_even_without_a_compiler(tmp_path):
    result = build(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert result.returncode == 0, result.stderr
    built = tmp_path / "out" / "cigl" / "runtime" / "program"
    assert (built / "program.py").exists()
    assert not list(built.glob("_kernels*"))
