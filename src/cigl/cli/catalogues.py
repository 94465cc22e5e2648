"""cigl data, methods, models: what there is."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cigl.cli.completion import datasets
from cigl.cli.format import make_app
from cigl.cli.shared import Json, app, argument, command, importing, show_columns, show_names, show_next
from cigl.common.errors import CiglError
from cigl.common.progress import counting, status_line
from cigl.common.text import span

if TYPE_CHECKING:
    from cigl.data.check import Checked
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


@command(data_app, "check")
def data_check(
    place: Annotated[str, argument("a folder of images, with a folder for each class", metavar="PATH")],
    workers: Annotated[int, typer.Option(min=1, help="number of images to read at a time")] = 2,
    as_json: Json = False,
) -> None:
    """Check a folder of images before training on it.

    Every image is read. Images that can't be read, classes without images, test images that are also training images,
    and the same image in two classes are reported in a sentence each, and the exit code is 1. `cigl train` refuses
    images that can't be read. An image that has been read is not read again until it changes.

    \b
    Example:
      cigl data check photos
    """
    with status_line(as_json), importing():
        from cigl.data import images_at
        from cigl.data.check import check_images
        from cigl.data.splits.folder import scan

    if (images := images_at(place)) is None:
        raise CiglError(f"there is no folder {place}: give a folder of images, with a folder for each class.")
    tree = scan(images)
    with counting("reading images", as_json) as tick:
        found = check_images(tree, workers, tick)
    if as_json:
        typer.echo(json.dumps(_as_plain(found)))
    else:
        _show(found)
    raise typer.Exit(1 if found.problems() else 0)


def _show(found: Checked) -> None:
    for problem in found.problems():
        typer.echo(f"problem: {problem}", err=True)
    about = _as_plain(found)
    sizes = dict.fromkeys(f"{width} x {height}" for width, height in (found.smallest, found.largest))
    judged = f"in {found.tree.judged_by}/" if found.tree.judged_by else "held out to judge by"
    typer.echo(
        f"{about['train']:,} training images and {about['test']:,} {judged}, {len(found.tree.classes)} classes, "
        f"{span(list(about['per_class'].values()), '{:,}')} training images each, {' to '.join(sizes)} pixels."
    )
    if not found.problems():
        typer.echo("No problems found.")
        show_next((f"cigl train --dataset {shlex.quote(str(found.tree.root))}", "train on these images"))


def _as_plain(found: Checked) -> dict[str, Any]:
    counts = Counter(found.tree.train.labels.tolist())
    return {
        "folder": str(found.tree.root),
        "train": len(found.tree.train.paths),
        "test": len(found.tree.test.paths),
        "per_class": {name: counts[k] for k, name in enumerate(found.tree.classes)},
        "smallest": found.smallest,
        "largest": found.largest,
        "unreadable": found.unreadable,
        "copies": found.copies,
        "contradictions": found.contradictions,
        "problems": found.problems(),
    }
