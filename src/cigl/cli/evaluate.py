"""cigl evaluate."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from cigl.cli.completion import one_of
from cigl.cli.shared import All, Explain, Json, app, argument, command, importing, option, show_next
from cigl.common.errors import CiglError
from cigl.common.progress import status_line

SPLITS = ["test", "validation", "train"]


@command(app, "evaluate")
def evaluate_command(
    run: Annotated[Path, argument("folder of a finished run")],
    split: Annotated[
        str, typer.Option(help="data to evaluate on: test, validation or train", autocompletion=one_of(SPLITS))
    ] = "test",
    temperature: Annotated[bool, option("apply the run's temperature", None, "--temperature")] = False,
    mc: Annotated[int | None, option("average the predictions over this many draws of the random mask", min=1)] = None,
    explain: Explain = False,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Measure the calibration of a finished run.

    Prints a verdict and a table, and writes the report (.json, .npz) and a reliability diagram (.svg) into the run's
    folder.

    \b
    Examples:
      cigl evaluate runs/001
      cigl evaluate runs/001 --temperature --explain
    """
    if run.is_file():
        raise CiglError(
            f"{run} is a file, which has no test data: give the folder of the run that it was exported from, `cigl "
            f"evaluate RUN`; or call cigl.evaluate(cigl.load({str(run)!r}), loader) in Python."
        )
    with status_line(as_json):
        with importing():
            from cigl.calibrate.reports.text import printed
            from cigl.train.evaluate import evaluate_run
        found = evaluate_run(run, split=split, temperature=temperature, masks=mc)
        parts = [split, *(["temperature"] if temperature else []), *([f"mc{mc}"] if mc is not None else [])]
        name = run / ("evaluation-" + "-".join(parts))
        found.to_json(name.with_suffix(".json"))
        found.reliability_diagram(name.with_suffix(".svg"))
    if as_json:
        typer.echo(json.dumps({"folder": str(run), "split": split} | found.to_dict()))
        return
    typer.echo(printed(found, every, explain))
    typer.echo(f"\nreliability diagram: {name}.svg\nreport: {name}.json, .npz")
    show_next((f"cigl export {shlex.quote(str(run))} model.cigl", "write the model as one small file"))
