"""The pages of the documentation as blocks of code, and how a reader would run them: in order, in one folder.

A block can carry a mark, in a comment before its fence:

    <!-- test: slow -->         takes minutes, or data that is downloaded: run by `make test-slow`
    <!-- test: parse, WHY -->   can't be run here: Python is compiled, command lines are parsed
    <!-- test: alone -->        Python that starts anew, without what the blocks before it have defined

Commands that train get a small budget, ``BUDGET``, added at the end of their command line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from cigl.cli import app
from cigl.train.config import KEYS

ROOT = Path(__file__).parents[2]
_PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in _PATHS}
LANGUAGES = {"python", "sh", "yaml", "json", "text", "math"}
_FENCE = re.compile(r"(?:^<!-- test: (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")

BUDGET = {
    "train": [("--train-size", "320"), ("--epochs", "20"), ("--update-every", "4"), ("--quiet",)],
    "study run": [("--seeds", "1"), ("--set", "train_size=2560"), ("--set", "epochs=4")],  # one topology update
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    mark: str = ""  # slow, parse, alone, or none

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        mark = (match["mark"] or "").partition(",")[0]
        found.append(Block(page, line, match["language"], match["text"], mark))
    return found


def commands(text: str) -> list[list[str]]:
    r"""The command lines of a block of shell, without comments.

    >>> commands("cigl train \\\n  --seed 1   # one\n\nmake demo\n")
    [['cigl', 'train', '--seed', '1'], ['make', 'demo']]
    """
    lines = (shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines())
    return [words for words in lines if words]


class Reader:
    """Runs the blocks of a page in the current folder, which should be an empty one."""

    def __init__(self, prelude: str = ""):
        self._prelude = prelude
        self._printed: str | None = None
        self._names = self._fresh()

    def _fresh(self) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(self._prelude, names)
        return names

    def run(self, block: Block) -> None:
        """Runs a block. A block of text that follows Python is what that has printed, up to its numbers."""
        printed, self._printed = self._printed, None
        if found := _FILE.match(block.text):
            Path(found[1]).write_text(block.text)
            sys.modules.pop(Path(found[1]).stem, None)
        if block.language == "python":
            if block.mark == "alone":
                self._names = self._fresh()
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), self._names)
            self._printed = output.getvalue()
        elif block.language == "sh":
            for words in commands(block.text):
                run_command(words)
        elif block.language == "text" and printed:
            assert _shape(printed) == _shape(block.text), f"{block} should be\n{printed}"
        else:
            parse(block)


def _shape(output: str) -> list[str]:
    """The first word of each line; numbers differ between machines."""
    words = [(line.split() or [""])[0] for line in output.strip().splitlines()]
    return [re.sub(r"\d+", "#", word) for word in words]


def parse(block: Block) -> None:
    """That a block is well formed, without running it."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "yaml":
        keys = set(yaml.safe_load(block.text))
        assert "methods" in keys or keys <= {*KEYS, "preset"}, f"{block} has unknown keys"
    elif block.language == "json":
        yaml.safe_load(block.text)
    elif block.language == "sh":
        for words in commands(block.text):
            parse_command(words)


def run_command(words: list[str]) -> None:
    if words[0] != "cigl":
        parse_command(words)
        return
    result = CliRunner().invoke(app, _within_budget(words[1:]))
    assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}\n{result.exception!r}"


def _within_budget(words: list[str]) -> list[str]:
    """The command line, with what makes it quick and is not in it.

    >>> _within_budget(["train", "--epochs", "5", "--quiet", "--update-every", "2"])[-2:]
    ['--train-size', '320']
    """
    for command, limits in BUDGET.items():
        if words[: len(command.split())] == command.split() and "--resume" not in words:
            return [*words, *(part for limit in limits if limit[0] not in words for part in limit)]
    return words


def parse_command(words: list[str]) -> None:
    """That a command line is one that exists."""
    program, *rest = words
    if program in ("torchrun", "python", "python3") and "-m" in rest:
        program, *rest = rest[rest.index("-m") + 1 :]
    if program == "cigl":
        _parse_cigl(rest)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in rest if "=" not in target), words
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), words
    else:
        assert program in ("pip", "source", "pre-commit", "git", "cd"), f"{words}: nobody checks this command"


def _parse_cigl(words: list[str]) -> None:
    import typer

    command: Any = typer.main.get_command(app)
    context = command.make_context("cigl", list(words), resilient_parsing=False)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)
