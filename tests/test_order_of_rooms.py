"""Imports point one way: from a room to rooms before it in ORDER, also inside functions and for types alone."""

import ast
from pathlib import Path

import pytest

import cigl

ROOT = Path(cigl.__path__[0]).parent

# From low to high. A name stands for the module, or for all modules of the package but those that have an entry of
# their own; what stands on one line may import each other.
ORDER = """
cigl.common
cigl.calibrate.measures
cigl.calibrate.registry
cigl.calibrate.corrections
cigl.calibrate.reports
cigl.calibrate
cigl.runtime.network.operations cigl.runtime.network
cigl.runtime.program
cigl.runtime.compile
cigl.runtime.schedule cigl.runtime.cut
cigl.runtime.training
cigl.runtime.format
cigl.runtime
cigl.sparsify.tensors
cigl.sparsify.optimizers
cigl.sparsify.parameters
cigl.sparsify.methods
cigl.sparsify.guards
cigl.sparsify.loop
cigl.sparsify.results
cigl.sparsify
cigl.models
cigl.data.splits cigl.data.augment
cigl.data.sources
cigl.data.registry
cigl.data
cigl.integrations
cigl.train.config cigl.train.signals
cigl.train.ranks
cigl.train.cost cigl.train.gradients cigl.train.optim cigl.train.threads cigl.train.trainer
cigl.train.folder
cigl.train
cigl.study
cigl.report.evidence
cigl.report.tables
cigl.report.figures
cigl.report.page
cigl.report
cigl
cigl.cli cigl.__main__
"""
RANK = {name: rank for rank, line in enumerate(ORDER.split("\n")) for name in line.split()}
MOST = 19  # modules in a folder


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in (ROOT / "cigl").rglob("*.py")}


def rank(module):
    place = module
    while place not in RANK:
        place = place.rpartition(".")[0]
    return RANK[place]


def imported(tree):
    """The names of modules that a module imports in any way, with the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{each.name}" for each in node.names]
            found = [each if each in MODULES else node.module for each in inside if each != "cigl.__version__"]
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):  # importlib, __import__
            found = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        else:
            continue
        yield from ((each, node.lineno) for each in found if each in MODULES)


def wrong(module, source):
    """What a module imports from rooms above its own."""
    found = imported(ast.parse(source))
    return [f"line {line} imports {each}" for each, line in found if rank(each) > rank(module)]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "cigl"])
def test_imports_point_downwards(module):
    assert not wrong(module, MODULES[module].read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import cigl.train.run",
        "def f():\n    from cigl.train import run",
        "if TYPE_CHECKING:\n    from cigl.train.run import Run",
        "import importlib\nimportlib.import_module('cigl.train.run')",
    ],
)
def test_every_kind_of_import_is_seen(source):
    assert wrong("cigl.data.split", source)
    assert not wrong("cigl.cli.train", source)


def test_the_order_names_what_there_is():
    places = {name.rpartition(".")[0] for name in MODULES} | set(MODULES)
    assert set(RANK) <= places


def test_the_folders_of_tests_are_those_of_the_package():
    tests, package = Path(__file__).parent, ROOT / "cigl"
    rooms = {path.name for path in package.iterdir()} & {path.name for path in tests.iterdir()}
    folders = {path.parent for room in rooms for path in tests.joinpath(room).rglob("test_*.py")}
    assert len(rooms) > 5
    assert {str(folder) for folder in folders if not (package / folder.relative_to(tests)).is_dir()} == set()


def test_no_folder_is_crowded():
    folders = {path.parent for path in MODULES.values()}
    assert {folder.name: count for folder in folders if (count := len(list(folder.glob("*.py")))) > MOST} == {}
