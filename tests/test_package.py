"""The package as a whole: what its modules are called, and what completion shows."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import cigl

MODULES = [each.name for each in pkgutil.walk_packages(cigl.__path__, "cigl.") if not each.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_hidden_behind_something_else(name):
    """Importing a module gives it, and not a function of the same name."""
    package, _, last = name.rpartition(".")
    if last.startswith("_kernels"):
        pytest.skip("a compiled library, loaded by ctypes")
    module = importlib.import_module(name)
    assert getattr(importlib.import_module(package), last) is module


def test_functions_of_packages_are_functions():
    for package, names in ((cigl.calibrate, "compare corrupt evaluate report"), (cigl.models, "resnet wide_resnet")):
        assert all(isinstance(getattr(package, name), types.FunctionType) for name in names.split())


def test_the_public_names_are_functions_and_are_shown():
    assert set(cigl.__all__) <= set(dir(cigl))
    for name in ("attach", "compare", "evaluate", "methods", "load", "save"):
        assert type(getattr(cigl, name)).__name__ == "function"
    for package in (cigl.calibrate, cigl.data, cigl.models, cigl.runtime, cigl.sparsify, cigl.train):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is not None


def test_completion_before_anything_is_used():
    code = "import cigl, sys; print('torch' in sys.modules, {'attach', 'evaluate', 'calibrate'} <= set(dir(cigl)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False True\n"


@pytest.mark.parametrize("path", sorted(Path(cigl.__path__[0]).rglob("*.py")), ids=lambda path: path.stem)
def test_singledispatch_reads_no_union(path):
    """Python 3.10 refuses one in an annotation, when the module is imported: name the classes in the decorator."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        decorators = getattr(node, "decorator_list", [])
        if any(isinstance(each, ast.Attribute) and each.attr == "register" for each in decorators):
            assert not isinstance(node.args.args[0].annotation, ast.BinOp), f"line {node.lineno}"
