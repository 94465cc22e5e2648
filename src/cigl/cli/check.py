"""cigl data check."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cigl.cli.catalogues import data_app
from cigl.cli.shared import Json, argument, command, show_next
from cigl.common.progress import counting

if TYPE_CHECKING:
    from cigl.data.check import Checked


@command(data_app, "check")
def data_check(
    place: Annotated[str, argument("a folder of images with train/ and val/", metavar="PATH")],
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
    from cigl.data import images_at
    from cigl.data.check import check_images
    from cigl.data.splits.folder import scan

    tree = scan(images_at(place))
    with counting("reading images", as_json) as tick:
        found = check_images(tree, workers, tick)
    if as_json:
        typer.echo(json.dumps(_plain(found)))
    else:
        _show(found)
    raise typer.Exit(1 if found.problems() else 0)


def _show(found: Checked) -> None:
    for problem in found.problems():
        typer.echo(f"problem: {problem}", err=True)
    about = _plain(found)
    sizes = dict.fromkeys(f"{width} x {height}" for width, height in (found.smallest, found.largest))
    typer.echo(
        f"{about['train']:,} training images and {about['test']:,} in {found.tree.judged_by}/, "
        f"{len(found.tree.classes)} classes, {_span(about['per_class'])} training images each, "
        f"{' to '.join(sizes)} pixels."
    )
    if not found.problems():
        typer.echo("No problems found.")
        dataset = shlex.quote(f"folder:{found.tree.root}")
        show_next((f"cigl train --dataset {dataset} --model resnet18", "train on these images"))


def _span(counts: dict[str, int]) -> str:
    least, most = min(counts.values()), max(counts.values())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _plain(found: Checked) -> dict[str, Any]:
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
