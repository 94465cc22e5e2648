"""cigl study: the paper's experiments, and your own grids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cigl.cli.format import command, make_app
from cigl.cli.shared import Json, app, errors_in_one_line, show_names
from cigl.errors import CiglError

if TYPE_CHECKING:
    from cigl.study.engine import Workers
    from cigl.study.grid import Study
    from cigl.study.store import StudyFolder

study_app = make_app(help="Run whole experiments and monitor them.")
app.add_typer(study_app, name="study")


@command(study_app, "list")
def study_list(as_json: Json = False) -> None:
    """The paper's experiments, a line each.

    Example:

      cigl study list
    """
    with errors_in_one_line():
        from cigl.study import catalogue

        show_names(catalogue.names(), as_json)


@command(study_app, "status")
def study_status(
    folder: Annotated[Path, typer.Argument(help="folder of a study")],
    as_json: Json = False,
) -> None:
    """Runs done, running, waiting and failed.

    Example:

      cigl study status studies/main
    """
    with errors_in_one_line():
        from cigl.study.show import show_status, status
        from cigl.study.store import StudyFolder

        state = status(StudyFolder(folder))
        if as_json:
            typer.echo(json.dumps(state))
        else:
            show_status(state)


@command(study_app, "run")
def study_run(
    what: Annotated[str, typer.Argument(metavar="NAME|FILE.yaml", help="from `cigl study list`, or your own grid")],
    out: Annotated[Path, typer.Option(help="folder of the study")],
    scale: Annotated[str | None, typer.Option(help="small, small-conv or paper [small]", show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option(help="how many, or which: 3 or 0,1,5", show_default=False)] = None,
    jobs: Annotated[int | None, typer.Option(help="runs at a time [cores / ranks]", show_default=False)] = None,
    ranks: Annotated[int, typer.Option(help="processes that train each run together", show_default=False)] = 1,
    only: Annotated[str, typer.Option(help="a part of the grid: sparsity=0.95,method=cigl", show_default=False)] = "",
    replace: Annotated[
        list[str] | None, typer.Option("--set", help="a key of all runs: dataset=folder:PATH (may be repeated)")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="folder of runs that studies share [OUT/runs]")] = None,
    ray: Annotated[str | None, typer.Option(help="run on Ray: local, auto or an address")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, or what is left of it.

    Finished runs are never run again; kill it whenever you like, and give the same command to resume. Several of these
    commands may work on one folder at the same time. Failed runs are reported at the end and tried again next time.

    Examples:

      cigl study run main --out studies/main

      cigl study run main --scale paper --set device=cuda --ray auto --out /shared/main

      cigl study run mine.yaml --out studies/mine --only sparsity=0.95,method=cigl
    """
    with errors_in_one_line(lambda: "finished runs are kept, give the same command to resume."):
        from cigl.study.engine import run_cells
        from cigl.study.show import grid_progress, show_status, status
        from cigl.study.store import StudyFolder

        study = _study(what, scale, seeds, _pairs("--set", replace or []))
        wanted = study.only(_pairs("--only", only.split(",") if only else []))
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
        if tally.failed:
            raise typer.Exit(1)


def _study(what: str, scale: str | None, seeds: str | None, keys: dict[str, str]) -> Study:
    import yaml

    from cigl.study import catalogue
    from cigl.study.grid import Study
    from cigl.train.config import read_keys

    if not what.endswith((".yaml", ".yml")):
        study = catalogue.study(what, scale or "small")
    elif scale is not None:
        raise CiglError(f"{what} says itself what is run: leave --scale out.")
    else:
        study = Study.of(read_keys(Path(what)))
    try:
        given = {key: yaml.safe_load(value) for key, value in keys.items()}
    except yaml.YAMLError:
        text = ", ".join(f"{key}={value}" for key, value in keys.items())
        raise CiglError(f"--set has {text}: give values as YAML has them.") from None
    study = study.with_keys(given)
    return study if seeds is None else study.with_seeds(_seeds(seeds))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part) if "," in text else tuple(range(int(text)))
    except ValueError:
        raise CiglError(f"--seeds is {text!r}: give a number of seeds, or seeds such as 0,1,5.") from None


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise CiglError(f"{option} has {name + equals + value!r}: give name=value.")
    names = [name.strip() for name, _, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise CiglError(f"{option} has {repeated[0]} more than once: give it once, and the command again for another.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _workers(jobs: int | None, ray: str | None, ranks: int) -> Callable[[StudyFolder], Workers]:
    """Checked before the study's folder is made, started after."""
    from cigl.study.local import LocalWorkers, cores
    from cigl.study.on_ray import RayWorkers, find_ray

    for name, value in (("--jobs", jobs), ("--ranks", ranks)):
        if value is not None and value < 1:
            raise CiglError(f"{name} is {value}: give a whole number, at least 1.")
    size = jobs or max(1, cores() // ranks)
    if ray is None:
        return lambda folder: LocalWorkers(size, folder.log, ranks)
    find_ray()
    return lambda folder: RayWorkers(ray, size, ranks)
