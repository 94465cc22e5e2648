"""cigl report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cigl.cli.format import command
from cigl.cli.shared import Json, app, errors_in_one_line


@command(app)
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of studies")],
    out: Annotated[Path | None, typer.Option(help="the page [report.html in the first DIR]")] = None,
    as_json: Json = False,
) -> None:
    """Write the tables and figures of studies, as one page that opens offline and as files beside it.

    Runs that are damaged, failed or not finished are left out, counted and named.

    Examples:

      cigl report studies/main

      cigl report studies/main studies/ablation --out results.html
    """
    with errors_in_one_line():
        from cigl.report.write import write_report

        written = write_report(folders, out or folders[0] / "report.html")
        if as_json:
            typer.echo(json.dumps(written))
            return
        for name, counts in written["studies"].items():
            left_out = "".join(f", {number} {what}" for what, number in counts.items() if number and what != "finished")
            typer.echo(f"{name}: {counts['finished']} finished runs{left_out}")
        typer.echo(f"the page: {written['page']}")
        typer.echo(f"tables (.md, .tex, .csv), figures (.svg, .png) and data: {written['files']}")
