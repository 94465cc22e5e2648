"""cigl data check."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cigl.cli.bars import bar
from cigl.cli.catalogues import data_app
from cigl.cli.shared import Json, errors_in_one_line

if TYPE_CHECKING:
    from cigl.data.check import Checked


@data_app.command("check")
def data_check(
    place: Annotated[str, typer.Argument(metavar="PATH", help="a folder of images with train/ and val/")],
    workers: Annotated[int, typer.Option(min=1, help="images that are read at a time")] = 2,
    as_json: Json = False,
) -> None:
    """Read every image of a folder, and report whatever would stop or spoil a training run.

    Images that can't be read, classes without images, test images that are among the training images too, and the
    same image in two classes: a sentence for each, and exit code 1. `cigl train` itself refuses images that can't be
    read; what was read once is not read again until it changes.

    Example:

      cigl data check photos
    """
    with errors_in_one_line():
        from cigl.data import images_at
        from cigl.data.check import check
        from cigl.data.folder import scan

        tree = scan(images_at(place))
        total = len(tree.train.paths) + len(tree.test.paths)
        with bar(total, as_json, "reading images") as advance:
            found = check(tree, workers, advance)
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
        typer.echo(f"No problems. Next: cigl train --dataset folder:{found.tree.root} --model resnet18")


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
