"""cigl study: the paper's experiments, and your own grids."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cigl.cli.completion import one_of, study_or_file
from cigl.cli.format import make_app
from cigl.cli.shared import OUTPUT, Json, app, argument, command, name_values, option, show_names, show_next
from cigl.common.errors import CiglError
from cigl.common.text import count

if TYPE_CHECKING:
    from cigl.study.engine import Workers
    from cigl.study.grid import Study
    from cigl.study.store import StudyFolder

SCALES = ["small", "small-conv", "paper"]
WHAT, HOW = "What is run", "How it is run"  # groups of options

study_app = make_app(help="Run whole experiments and monitor them.")
app.add_typer(study_app, name="study")


@command(study_app, "list")
def study_list(as_json: Json = False) -> None:
    """List the paper's experiments.

    \b
    Example:
      cigl study list
    """
    from cigl.study import catalogue

    show_names(catalogue.names(), as_json)


@command(study_app, "status")
def study_status(
    folder: Annotated[Path, argument("folder of a study")],
    as_json: Json = False,
) -> None:
    """Show how far a study is.

    It counts the runs that are done, running, waiting and failed, and says why runs failed.

    \b
    Example:
      cigl study status studies/main
    """
    from cigl.study.show import show_status, status
    from cigl.study.store import StudyFolder

    state = status(StudyFolder(folder))
    if as_json:
        typer.echo(json.dumps(state))
    else:
        show_status(state)
        show_next(*_next(state))


@command(study_app, "run", "finished runs are kept; the same command resumes the study.")
def study_run(
    what: Annotated[
        str,
        argument(
            "a name from `cigl study list`, or a grid of your own",
            metavar="NAME|FILE.yaml",
            autocompletion=study_or_file,
        ),
    ],
    out: Annotated[Path, option("folder of the study")],
    scale: Annotated[
        str | None, option("small, small-conv or paper (default: small)", WHAT, autocompletion=one_of(SCALES))
    ] = None,
    seeds: Annotated[str | None, option("how many seeds, or which: 3, or 0,1,5 (default: 3)", WHAT)] = None,
    only: Annotated[
        list[str] | None,
        option(
            "only a part of the grid, by method, sparsity, setting and seed: sparsity=0.9,0.95,method=cigl,rigl", WHAT
        ),
    ] = None,
    replace: Annotated[
        list[str] | None,
        option("an option of cigl train for all runs, such as dataset=folder:PATH; may be repeated", WHAT, "--set"),
    ] = None,
    jobs: Annotated[int | None, option("number of runs at a time (default: cores / ranks)", HOW, min=1)] = None,
    ranks: Annotated[int, option("number of processes that train each run together (default: 1)", HOW, min=1)] = 1,
    runs: Annotated[
        Path | None, option("folder of runs, which studies can share (default: runs in --out)", HOW)
    ] = None,
    ray: Annotated[str | None, option("run on Ray: local, auto or an address", HOW)] = None,
    quiet: Annotated[bool, option("no progress bar", OUTPUT, "--quiet")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, or what is left of it.

    Finished runs are never repeated: it can be interrupted at any time, and the same command resumes it. Several of
    these commands can work on one folder at the same time. Failed runs are listed at the end and tried again next time.

    \b
    Examples:
      cigl study run main --out studies/main
      cigl study run mine.yaml --out studies/mine --only sparsity=0.9,0.95
      cigl study run main --scale paper --set device=cuda --ray auto --out /shared/main
    """
    from cigl.study.engine import run_cells
    from cigl.study.show import grid_progress, show_status, status
    from cigl.study.store import StudyFolder

    study = _study(what, out, scale, seeds, name_values("--set", replace or []))
    wanted = study.only(axes(only or []))
    workers = _workers(jobs, ray, ranks)
    folder = StudyFolder(out)
    folder.create(study, runs)
    with grid_progress(study.name, quiet or as_json) as show:
        tally = run_cells(folder, wanted, workers(folder), show)
    state = status(folder)
    if as_json:
        typer.echo(json.dumps(state))
    else:
        show_status(state)
        show_next(*_next(state))
    if tally.failed:
        raise typer.Exit(1)


def _next(state: dict[str, Any]) -> list[tuple[str, str]]:
    folder, steps = shlex.quote(state["folder"]), []
    if left := state["waiting"] + len(state["failed"]):
        file = shlex.quote(str(Path(state["folder"]) / "study.yaml"))
        steps.append((f"cigl study run {file} --out {folder}", f"train what is left: {count(left, 'run')}"))
    if state["done"]:
        steps.append((f"cigl report {folder}", "tables, figures and a page"))
    return steps


def axes(texts: list[str]) -> dict[str, list[str]]:
    """What --only says: the wanted values of each axis.

    >>> axes(["sparsity=0.9,0.95,method=cigl", "method=rigl"])
    {'sparsity': ['0.9', '0.95'], 'method': ['cigl', 'rigl']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        axis = ""
        for part in text.split(","):
            name, equals, value = (each.strip() for each in part.rpartition("="))
            axis = name if equals else axis
            if not axis or not value:
                raise CiglError(f"--only has {part.strip()!r}: give axis=value, such as sparsity=0.9,0.95,method=cigl.")
            found.setdefault(axis, []).append(value)
    return found


def _study(what: str, out: Path, scale: str | None, seeds: str | None, keys: dict[str, Any]) -> Study:
    from cigl.study import catalogue
    from cigl.study.grid import Study
    from cigl.study.store import StudyFolder
    from cigl.train.config import read_keys

    if not what.endswith((".yaml", ".yml")):
        study = catalogue.study(what, scale or "small")
    elif scale is not None:
        raise CiglError(f"--scale is for the studies of `cigl study list`, and {what} is a file: leave --scale out.")
    elif Path(what).resolve() == StudyFolder(out).file.resolve():  # as `cigl study status` has it
        study = StudyFolder(out).read()
    else:
        study = Study.of(read_keys(Path(what)))
    study = study.with_keys(keys)
    return study if seeds is None else study.with_seeds(_seeds(seeds))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part) if "," in text else tuple(range(int(text)))
    except ValueError:
        raise CiglError(f"--seeds is {text!r}: give a number of seeds, or seeds such as 0,1,5.") from None


def _workers(jobs: int | None, ray: str | None, ranks: int) -> Callable[[StudyFolder], Workers]:
    """Checked before the study's folder is made, started after."""
    from cigl.study.local import LocalWorkers, cores
    from cigl.study.on_ray import RayWorkers, find_ray

    size = jobs or max(1, cores() // ranks)
    if ray is None:
        return lambda folder: LocalWorkers(size, folder.log, ranks)
    find_ray()
    return lambda folder: RayWorkers(ray, size, ranks)
