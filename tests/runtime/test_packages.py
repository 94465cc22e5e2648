"""Imports inside the runtime point one way."""

import ast
from pathlib import Path

import pytest

import cigl.runtime

ROOT = Path(cigl.runtime.__file__).parent
LOWER = {"compile": set(), "format": {"compile"}, "program": {"compile"}}  # the packages that each may import


@pytest.mark.parametrize("package", LOWER)
def test_a_package_imports_only_what_is_below_it(package):
    files = sorted((ROOT / package).glob("*.py"))
    assert len(files) > 3
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    inside = {name.split(".")[2] for name in found if name.startswith("cigl.runtime.")}
    assert inside <= {package} | LOWER[package]
