"""cigl report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from cigl.cli.shared import Json, app, argument, command, importing, option, show_next
from cigl.common.phases import phase
from cigl.common.progress import status_line
from cigl.common.text import count


@command(app, "report")
def report_command(
    folders: Annotated[list[Path], argument("folders of studies, from cigl study run", metavar="DIR")],
    out: Annotated[Path | None, option("the page to write (default: report.html in the first DIR)")] = None,
    as_json: Json = False,
) -> None:
    """Turn finished studies into a page with tables and figures.

    The page opens offline; tables, figures and data are also written as files beside it. Runs that failed, are damaged
    or not finished are left out and listed.

    \b
    Examples:
      cigl report studies/main
      cigl report studies/main studies/ablation --out results.html
    """
    with status_line(as_json):
        with importing():
            from cigl.report.write import write_report
        with phase("writing the report"):
            written = write_report(folders, out or folders[0] / "report.html")
    if as_json:
        typer.echo(json.dumps(written))
        return
    for name, counts in written["studies"].items():
        left_out = "".join(f", {number} {what}" for what, number in counts.items() if number and what != "finished")
        typer.echo(f"{name}: {count(counts['finished'], 'finished run')}{left_out}")
    typer.echo(f"page: {written['page']}")
    typer.echo(f"tables (.md, .tex, .csv), figures (.svg, .png) and data: {written['files']}")
    left = [
        (f"cigl study status {shlex.quote(str(folder))}", "which runs are left out, and why")
        for folder, counts in zip(folders, written["studies"].values(), strict=True)
        if sum(counts.values()) > counts["finished"]
    ]
    show_next((f"python -m webbrowser {shlex.quote(written['page'])}", "open the page"), *left)
