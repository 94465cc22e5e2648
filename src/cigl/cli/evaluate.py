"""cigl evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cigl.cli.format import command
from cigl.cli.shared import Json, app, errors_in_one_line


@command(app)
def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    split: Annotated[str, typer.Option(help="test, validation or train")] = "test",
    temperature: Annotated[bool, typer.Option("--temperature", help="with the run's temperature")] = False,
    mc: Annotated[int | None, typer.Option(help="average over this many draws of the random mask")] = None,
    as_json: Json = False,
) -> None:
    """Calibration of a finished run: table, JSON and reliability diagram.

    Example:

      cigl evaluate runs/001 --temperature
    """
    with errors_in_one_line():
        from cigl.train.evaluate import evaluate_run

        found = evaluate_run(run, split=split, temperature=temperature, masks=mc)
        parts = [split, *(["temperature"] if temperature else []), *([f"mc{mc}"] if mc is not None else [])]
        name = run / ("evaluation-" + "-".join(parts))
        found.to_json(name.with_suffix(".json"))
        found.reliability_diagram(name.with_suffix(".svg"))
        if as_json:
            typer.echo(json.dumps({"folder": str(run), "split": split} | found.to_dict()))
        else:
            typer.echo(f"{found}\n\n{name}.json, .npz, .svg")
