"""cigl data, methods, models: what there is."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cigl.cli.completion import datasets
from cigl.cli.format import make_app
from cigl.cli.shared import Json, app, argument, command, importing, show_columns, show_names, show_next
from cigl.common.progress import status_line

if TYPE_CHECKING:
    from cigl.data.stored import Stored

data_app = make_app(help="Download and list datasets.")
app.add_typer(data_app, name="data")


@command(data_app, "list")
def data_list(as_json: Json = False) -> None:
    """List the datasets, and which of them are on this machine.

    \b
    Example:
      cigl data list
    """
    with status_line(as_json), importing():
        import cigl.data
        from cigl.data.stored import stored
    known, here = cigl.data.names(), stored()
    if as_json:
        typer.echo(json.dumps({name: _plain(about, here[name]) for name, about in known.items()}))
        return
    show_columns([(name, _state(here[name]), about) for name, about in known.items()])
    if missing := [name for name, each in here.items() if each.state == "not downloaded"]:
        show_next((f"cigl data get {missing[0]}", "download a dataset"))


def _state(found: Stored) -> str:
    """In a word or two, with the size."""
    return found.state if found.bytes is None else f"{found.state}, {found.bytes / 1e6:.0f} MB"


def _plain(about: str, found: Stored) -> dict[str, Any]:
    path = None if found.path is None else str(found.path)
    return {"about": about, "state": found.state, "path": path, "bytes": found.bytes}


@command(data_app, "get")
def data_get(
    name: Annotated[str, argument("a name from `cigl data list`", autocompletion=datasets)],
    as_json: Json = False,
) -> None:
    """Download a dataset and check it.

    It is kept in the folder that $CIGL_DATA names (default: ~/.cache/cigl). An interrupted download continues.

    \b
    Example:
      cigl data get fashion-mnist
    """
    with status_line(as_json), importing():
        import cigl.data
    path = cigl.data.get(name, progress=not as_json and sys.stderr.isatty())
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else f"{name} is in {path}")


@command(app)
def methods(as_json: Json = False) -> None:
    """List the sparse-training methods.

    \b
    Example:
      cigl methods
    """
    with status_line(as_json), importing():
        import cigl.sparsify
    show_names(cigl.methods(), as_json)


@command(app)
def models(as_json: Json = False) -> None:
    """List the networks.

    \b
    Example:
      cigl models
    """
    with status_line(as_json), importing():
        import cigl.models
    show_names(cigl.models.names(), as_json)
