"""Mutation testing: faults of one token in a room's modules, a random sample, each run against the room's tests.

    python tests/mutants.py --count 50 --seed 1 calibrate/measures calibrate/corrections

The faults are cosmic-ray's (a comparison turned, a constant plus one, a condition negated, ...): first places are
drawn, then one fault for each. The room's tests run once under coverage.py, and each fault is then given to the tests
that have executed the statement. All happens in a copy of the tree. What no test notices is shown as a diff: it is
equivalent to the original, or a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
BITWISE = ("Shift", "BitOr", "BitAnd", "BitXor")  # in place of arithmetic: errors of type, which any test would notice
SECONDS = 1200  # a fault that makes tests run longer is noticed, too
PYTEST = ["-q", "-p", "no:cacheprovider"]


def modules(rooms: list[str]) -> list[Path]:
    """Of folders and of single modules, named from src/cigl."""
    found = [sorted(path.rglob("*.py")) if path.is_dir() else [path] for path in map(Path("src/cigl").joinpath, rooms)]
    return [path for paths in found for path in paths]


def types(path: Path) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations are, which nothing computes with: from and to, as line and column."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.AST):
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)  # type: ignore[attr-defined]


def sample(paths: list[Path], count: int, seed: int) -> list[Any]:
    """Mutations at ``count`` random places."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.work_db import WorkDB, use_db

    annotations = {path: list(types(path)) for path in paths}
    places: dict[tuple[Path, Any], list[Any]] = defaultdict(list)
    with use_db("mutants.sqlite", WorkDB.Mode.create) as database:
        init(paths, database, {})
        for item in database.work_items:
            (mutation,) = item.mutations
            is_type = any(begin <= mutation.start_pos < end for begin, end in annotations[mutation.module_path])
            if not is_type and not mutation.operator_name.endswith(BITWISE):
                places[mutation.module_path, mutation.start_pos].append(mutation)
    draw = random.Random(seed)
    drawn = draw.sample(sorted(places), min(count, len(places)))
    return [draw.choice(sorted(places[each], key=lambda m: (m.operator_name, m.occurrence))) for each in drawn]


class Room:
    """The tests of a room, and what each of them executes."""

    def __init__(self, name: str, tests: list[str]):
        import coverage

        self.name = name
        Path("coverage.ini").write_text(f"[run]\nsource = src/cigl/{name}\ndynamic_context = test_function\n")
        command = [sys.executable, "-m", "coverage", "run", "--rcfile=coverage.ini", f"--data-file={name}.coverage"]
        subprocess.run([*command, "-m", "pytest", *PYTEST, f"--junitxml={name}.xml", *tests], check=True)
        self._seconds: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(f"{name}.xml").iter("testcase"):
            self._seconds[case.attrib["name"].partition("[")[0]] += float(case.attrib["time"])
        self._places: dict[str, list[str]] = defaultdict(list)  # of a test's name
        for path in sorted(Path("tests", name).rglob("test_*.py")):
            for test in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE):
                self._places[test].append(f"{path}::{test}")
        self._data = coverage.CoverageData(f"{name}.coverage")
        self._data.read()

    def tests(self, path: Path, line: int) -> list[str]:
        """Those that execute the statement; where it is executed by an import, those that execute any of the module."""
        executed = self._data.contexts_by_lineno(str(path.resolve()))
        statements = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.stmt))
        around = [(s.lineno, s.end_lineno or 0) for s in statements if s.lineno <= line <= (s.end_lineno or 0)]
        first, last = max(around, default=(line, line))
        found = {context for number in range(first, last + 1) for context in executed.get(number, ())}
        if "" in found:
            found = {context for contexts in executed.values() for context in contexts}
        tests = sorted({context.rpartition(".")[2] for context in found}, key=lambda test: self._seconds[test])
        return [str(path), *(place for test in tests for place in self._places[test])]  # the first that fails ends it


def import_libraries(tests: Path) -> None:
    """What tests import of other people's, once for all: a fork of this process has it."""
    nodes = [node for path in tests.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    for name in sorted(names):
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is not None and "site-packages" in (spec.origin or ""):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def is_noticed(mutation: Any, tests: list[str]) -> bool:
    """Whether a test fails while the mutation is in its file."""
    import pytest
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    with use_mutation(mutation.module_path, operator, mutation.occurrence) as (before, after):
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            os._exit(int(pytest.main([*PYTEST, "-x", *tests])))
        _, status = os.waitpid(child, 0)
    survived = status in (0, pytest.ExitCode.NO_TESTS_COLLECTED << 8)
    if survived:
        names = [str(mutation.module_path)] * 2
        print("".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), *names, n=2)))
    return not survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", help="only these, where a room's tests take long")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        sys.path.insert(0, f"{folder}/src")
        sys.dont_write_bytecode = True
        mutations = sample(modules(given.rooms), given.count, given.seed)
        inside = [each.module_path.relative_to("src/cigl") for each in mutations]
        names = dict.fromkeys(path.parts[0] for path in inside)
        rooms = {name: Room(name, given.tests or [f"tests/{name}"]) for name in names}
        for name in names:
            import_libraries(Path("tests", name))
        noticed = 0
        for number, (each, path) in enumerate(zip(mutations, inside, strict=True), 1):
            tests = rooms[path.parts[0]].tests(each.module_path, each.start_pos[0])
            found = is_noticed(each, tests)
            noticed += found
            what = f"{each.operator_name.removeprefix('core/')} in {path}:{each.start_pos[0]}"
            print(f"{number} of {len(mutations)}: {what} {'noticed' if found else 'SURVIVED'}", flush=True)
    print(f"\n{noticed} of {len(mutations)} mutants were noticed")


if __name__ == "__main__":
    main()
