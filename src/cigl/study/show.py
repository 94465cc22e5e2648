"""What a person sees of a study: where the grid stands while it is worked through, and where it stood."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cigl.common.progress import Field, bar_line, drawn
from cigl.common.text import duration, percent
from cigl.study.engine import Show, Tally
from cigl.study.store import Found, StudyFolder

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@contextmanager
def grid_progress(name: str, quiet: bool = False) -> Iterator[Show]:
    """Runs done, running, failed, and time left; on something that is no terminal, a line per run."""
    if quiet:
        yield lambda tally, news: None
    elif not sys.stderr.isatty():
        yield _lines
    else:
        grid = _Grid(name)
        with drawn(grid) as console:

            def show(tally: Tally, news: list[str]) -> None:
                grid.tally = tally
                for line in news:
                    if console is not None:
                        console.print(line, highlight=False, markup=False)

            yield show


class _Grid:
    """A line for the study, and one for each run."""

    def __init__(self, name: str):
        self.name = name
        self.tally: Tally | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if (tally := self.tally) is None:
            return
        lines = [(tally.done / max(1, tally.total), self.name, summary(tally))]
        for cell, share in tally.running.items():
            lines.append((share, f"  {cell}", percent(share, 0) if share < 1 else "evaluating"))
        for share, what, state in lines:
            yield bar_line(share, [Field(what, 0), Field(state, 1)], options.max_width, options.ascii_only, longest=12)


def _lines(tally: Tally, news: list[str]) -> None:
    for line in news:
        print(f"{line} ({summary(tally)})", file=sys.stderr)


def summary(tally: Tally) -> str:
    parts = [f"{tally.done}/{tally.total} done", f"{len(tally.running)} running"]
    if tally.elsewhere:
        parts.append(f"{tally.elsewhere} in other processes")
    if tally.failed:
        parts.append(f"{len(tally.failed)} failed")
    if tally.seconds_left is not None and tally.seconds_left >= 1:
        parts.append(f"{duration(tally.seconds_left)} left")
    return ", ".join(parts)


def status(folder: StudyFolder) -> dict[str, Any]:
    """Where the study in a folder stands, as plain data."""
    study, found = folder.read(), folder.find()
    running = [cell for cell in [*found.missing, *found.failed] if folder.folder(cell).is_locked]
    failed = {cell: error for cell, error in found.failed.items() if cell not in running}
    return {
        "study": study.name,
        "folder": str(folder.path),
        "total": _total(found),
        "done": len(found.finished),
        "running": [str(cell) for cell in running],
        "failed": [
            {"run": str(cell), "path": str(folder.folder(cell).path), "message": error.get("message", "")}
            for cell, error in failed.items()
        ],
        "damaged": {str(path): reason for path, reason in found.damaged.items()},
        "waiting": len(found.missing) + len(found.failed) - len(running) - len(failed),
    }


def _total(found: Found) -> int:
    return len(found.finished) + len(found.failed) + len(found.damaged) + len(found.missing)


def show_status(state: dict[str, Any]) -> None:
    print(
        f"{state['study']} in {state['folder']}: {state['done']} of {state['total']} runs done, "
        f"{len(state['running'])} running, {state['waiting']} waiting, {len(state['failed'])} failed, "
        f"{len(state['damaged'])} damaged"
    )
    for run in state["running"]:
        print(f"  running  {run}")
    for run in state["failed"]:
        print(f"  failed   {run['run']} ({run['path']}): {run['message']}")
    for path, reason in state["damaged"].items():
        print(f"  damaged  {path}: {reason}")
