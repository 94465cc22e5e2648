"""cigl data, methods, models: what there is."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cigl.cli.format import command, make_app
from cigl.cli.shared import Json, app, errors_in_one_line, show_names

data_app = make_app(help="Fetch and list datasets.")
app.add_typer(data_app, name="data")


@command(data_app, "list")
def data_list(as_json: Json = False) -> None:
    """The datasets that can be trained on.

    Example:

      cigl data list
    """
    with errors_in_one_line():
        import cigl.data

        show_names(cigl.data.names(), as_json)


@command(data_app, "get")
def data_get(name: Annotated[str, typer.Argument(help="a name from `cigl data list`")], as_json: Json = False) -> None:
    """Fetch a dataset, check it, and keep it in $CIGL_DATA (default: ~/.cache/cigl).

    Example:

      cigl data get fashion-mnist
    """
    with errors_in_one_line():
        import cigl.data

        path = cigl.data.get(name, progress=not as_json and sys.stderr.isatty())
        typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else f"{name} is in {path}")


@command(app)
def methods(as_json: Json = False) -> None:
    """The sparse-training methods, a line each.

    Example:

      cigl methods
    """
    with errors_in_one_line():
        import cigl

        show_names(cigl.methods(), as_json)


@command(app)
def models(as_json: Json = False) -> None:
    """The networks, a line each.

    Example:

      cigl models
    """
    with errors_in_one_line():
        import cigl.models

        show_names(cigl.models.names(), as_json)
