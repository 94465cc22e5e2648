"""The compiled library: found or not, of the right version, and the instruction set that is asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cigl.errors import CiglError
from cigl.runtime import library
from cigl.runtime.program import Packed, Program

ROOT = Path(__file__).parents[2]


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


def test_without_a_library_the_reason_says_what_to_do(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    assert not library.available()
    assert "install a C++ compiler" in library.reason()
    program = Program(1, 1)
    program.output(program.linear(program.input(2), Packed(torch.ones(1, 2), None)))
    with pytest.raises(CiglError, match="install a C\\+\\+ compiler"):
        program.finish()


def test_a_broken_library_is_as_good_as_none(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    (tmp_path / f"_kernels{library.EXTENSION_SUFFIXES[0]}").write_text("not a library")
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


def test_an_instruction_set_that_the_processor_lacks_is_refused(monkeypatch):
    missing = [name for name in library.ISAS if not library.lanes(name)]
    for name in missing:
        monkeypatch.setenv("CIGL_ISA", name)
        with pytest.raises(CiglError, match="does not have"):
            library.isa()


def test_the_structures_have_the_sizes_that_the_library_expects():
    view, op, program = (library.get().cigl_size(which) for which in range(3))
    assert (view, op, program) == tuple(map(library.ctypes.sizeof, (library.View, library.Op, library.Program)))


def test_the_package_is_built_even_without_a_compiler(tmp_path):
    result = build(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert result.returncode == 0, result.stderr
    built = tmp_path / "out" / "cigl" / "runtime"
    assert (built / "program.py").exists()
    assert not list(built.glob("_kernels*"))


@pytest.mark.slow
def test_the_package_is_built_with_its_kernels(tmp_path):
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "out" / "cigl" / "runtime").glob("_kernels*"))
