"""cigl predict."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cigl.cli.opening import Opened, opened
from cigl.cli.shared import Json, app, argument, command, show_next
from cigl.common.errors import CiglError
from cigl.common.progress import Tick, counting, status_line
from cigl.common.text import count, percent, printable

Row = tuple[str, list[tuple[str, float]]]  # an image, and its likeliest classes
MANY = 64  # images, beyond which a progress bar is shown


@command(app, "predict")
def predict_command(
    model: Annotated[Path, argument("a .cigl file, or the folder of a finished run")],
    images: Annotated[list[Path], argument("image files, or folders of images")],
    top: Annotated[int, typer.Option(min=1, help="number of classes to show for each image")] = 1,
    as_json: Json = False,
) -> None:
    """Predict the classes of images, with calibrated probabilities.

    Images are resized, cropped and normalised as they were when the model was evaluated. A folder stands for all
    images in it and its subfolders. If an image can't be read, the others are still predicted and the exit code is 1.

    \b
    Examples:
      cigl predict model.cigl photo.jpg
      cigl predict model.cigl photos/ --top 3
      cigl predict runs/001 photos/ --json
    """
    files = _files(images)
    with status_line(as_json):
        given = _opened(model)
    with counting("reading images", quiet=as_json or len(files) <= MANY) as tick:
        found, failed = _predicted(given, files, top, tick)
    if as_json:
        typer.echo(json.dumps(_plain(model, given, found, failed)))
        raise typer.Exit(1 if failed else 0)
    if found:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # nothing is cut off in a pipe
        typer.echo("\n".join(table(found, width)))
    for _, reason in failed:
        typer.echo(f"error: {printable(reason)}", err=True)
    if failed:
        typer.echo(f"{len(failed)} of {count(len(files), 'image')} could not be read.", err=True)
        raise typer.Exit(1)
    again = f"cigl predict {shlex.quote(str(model))} ..."
    more = [(f"{again} --top 3", "the three likeliest classes of each")] if top == 1 else []
    show_next(*more, (f"{again} --json", "all numbers, for scripts"), err=True)


def _files(given: Sequence[Path]) -> list[str]:
    from cigl.common.images import ENDINGS, image_files

    found: list[str] = []
    for path in given:
        inside = image_files(path) if path.is_dir() else [str(path)]
        if not inside:
            raise CiglError(f"{path} holds no images ({', '.join(ENDINGS)}).")
        found += inside
    return found


def _opened(path: Path) -> Opened:
    found = opened(path, fast=True)
    if found.preprocessing is not None:
        return found
    if path.is_file():
        raise CiglError(
            f"{path} does not record how its images are preprocessed: if its run was trained on images, export it "
            f"again, `cigl export RUN {path}`; save your own model with cigl.save(..., classes=..., preprocessing=...)."
        )
    raise CiglError(
        f"the run in {path} was trained on data whose inputs are not known to be images: call its model in Python, "
        f"after `cigl export {path} model.cigl`."
    )


def _predicted(given: Opened, files: list[str], top: int, tick: Tick) -> tuple[list[Row], list[tuple[str, str]]]:
    """Images with their likeliest classes, and images with the reason why they can't be read."""
    import numpy as np
    import torch

    from cigl.runtime.predicting import BATCH, Predictions, probabilities

    assert given.preprocessing is not None
    found: list[Row] = []
    failed: list[tuple[str, str]] = []
    for start in range(0, len(files), BATCH):
        names, pixels = [], []
        for file in files[start : start + BATCH]:
            try:
                pixels.append(given.preprocessing.pixels(file))
                names.append(file)
            except CiglError as error:
                failed.append((file, str(error)))
        if pixels:
            batch = torch.from_numpy(np.stack(pixels))
            rows = Predictions.of(probabilities(given.model, batch, given.preprocessing), given.classes).top(top)
            found += zip(names, rows, strict=True)
        tick(min(start + BATCH, len(files)), len(files))
    return found, failed


def _plain(model: Path, given: Opened, found: list[Row], failed: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "model": str(model),
        "temperature": given.temperature,
        "predictions": [
            {"image": file, "label": row[0][0], "top": [{"label": name, "probability": p} for name, p in row]}
            for file, row in found
        ],
        "failed": [{"image": file, "error": reason} for file, reason in failed],
    }


def table(rows: Sequence[Row], width: int | None) -> list[str]:
    """Lines of at most ``width``: an image's end and a class's beginning are what is kept.

    >>> print("\\n".join(table([("photos/cat.jpg", [("cat", 0.93), ("dog", 0.04)])], 80)))
    image           class  probability
    photos/cat.jpg  cat         93.0 %
                    dog          4.0 %
    """
    first, second, last = "image", "class", "probability"
    classes = max(len(second), *(len(name) for _, row in rows for name, _ in row))
    files = max(len(first), *(len(file) for file, _ in rows))
    if width is not None:
        room = width - len(last) - 4
        classes = min(classes, max(len(second), room - files, room // 2))
        files = min(files, max(len(first), room - classes))
    lines = [f"{first:<{files}}  {second:<{classes}}  {last}"]
    for file, row in rows:
        image = printable(file)
        image = image if len(image) <= files else "…" + image[len(image) - files + 1 :]
        for name, probability in row:
            name = name if len(name) <= classes else name[: classes - 1] + "…"
            lines.append(f"{image:<{files}}  {name:<{classes}}  {percent(probability, 1):>{len(last)}}")
            image = ""
    return lines
