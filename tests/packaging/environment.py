"""A Python environment that has some of this one's packages and nothing else, without downloading them again."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


class Environment:
    def __init__(self, folder: Path, packages: Iterable[str]):
        """``packages`` and all that they require are linked from here, at the versions that are installed here."""
        venv.create(folder)
        self.bin = folder / "bin"
        linked = folder / "linked"
        linked.mkdir()
        for package in closure(packages):
            for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (linked / name).exists():  # folders such as nvidia belong to several packages
                    (linked / name).symlink_to(package.locate_file(name))
        [site] = folder.glob("lib/python*/site-packages")
        (site / "linked.pth").write_text(f"{linked}\n")

    def install(self, *arguments: str) -> None:
        """pip for this environment: nothing is downloaded, so that all that is required must be there."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--no-index", "--quiet"]
        done = subprocess.run([*pip, *arguments], env=self._variables(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        program = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(program, cwd=cwd or self.bin, env=self._variables(), capture_output=True, text=True)

    def python(self, code: str) -> str:
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _variables(self) -> dict[str, str]:
        """No compiler, nobody else's packages, no index of packages; data and home are the caller's."""
        drop = ("PYTHON", "PIP_", "VIRTUAL_ENV", "CC", "CXX")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
        return kept | {"PATH": str(self.bin), "PIP_CONFIG_FILE": os.devnull, "OMP_NUM_THREADS": "1"}


def closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        key = requirement.name, frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        found = distribution(requirement.name)
        yield found
        for text in found.requires or ():
            more = Requirement(text)
            if any(more.marker is None or more.marker.evaluate({"extra": extra}) for extra in (*key[1], "")):
                waiting.append(more)
