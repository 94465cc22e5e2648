"""cigl export."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from cigl.cli.opening import opened
from cigl.cli.shared import Json, app, argument, command, importing, option, show_next
from cigl.common.errors import CiglError
from cigl.common.phases import phase
from cigl.common.progress import status_line
from cigl.common.text import percent


@command(app, "export")
def export_command(
    run: Annotated[Path, argument("folder of a finished run; for ONNX also a .cigl file")],
    file: Annotated[Path, argument("the file to write: model.cigl or model.onnx")],
    half: Annotated[bool, option("store the weights of a .cigl file in fp16: a third smaller", None, "--half")] = False,
    as_json: Json = False,
) -> None:
    """Write a finished run's model as a .cigl or .onnx file.

    A .cigl file is small: it holds the non-zeros, the operations (no class is needed to load it), the run's
    temperature, if it has one, its calibration report, and, for `cigl predict`, class names and preprocessing.

    A file that ends in .onnx holds the network with its zeros. Its outputs are logits and probabilities (with the
    temperature); class names, preprocessing and temperature are in its metadata.

    \b
    Examples:
      cigl export runs/001 model.cigl
      cigl export runs/001 model.onnx
    """
    is_onnx = file.suffix.lower() == ".onnx"
    if not is_onnx and file.suffix.lower() != ".cigl":
        raise CiglError(
            f"{file} ends in neither .cigl nor .onnx, which are what can be written: give one of them. The plain state "
            f"dict is in {run / 'model.safetensors'}."
        )
    if is_onnx and half:
        raise CiglError("--half is for .cigl files: leave it out.")
    with status_line(as_json), phase(f"writing {file.name}"):
        found = _to_onnx(run, file) if is_onnx else _to_cigl(run, file, half)
    if as_json:
        typer.echo(json.dumps({"file": str(file)} | found))
        return
    share, dense = found["nonzeros"] / found["parameters"], 4e-6 * found["parameters"]
    typer.echo(
        f"{file}: {found['bytes'] / 1e6:.2f} MB for {found['nonzeros']:,} of {found['parameters']:,} "
        f"parameters ({percent(share, 1)}; dense fp32: {dense:.2f} MB)"
    )
    if "outputs" in found:
        typer.echo(f"inputs: batches of {'x'.join(map(str, found['shape']))}; outputs: logits, probabilities")
        return
    typer.echo(f"load it in Python: cigl.load({str(file)!r}{', into=model' if found['outside'] else ''})")
    if found["outside"]:
        return
    name = shlex.quote(str(file))
    predict = [(f"cigl predict {name} photo.jpg", "classes of images, with probabilities")]
    show_next(
        *(predict if found["preprocessing"] else []),
        (f"cigl bench {name} --batch 64", "its speed here, against dense engines"),
    )


def _to_cigl(run: Path, file: Path, half: bool) -> dict[str, Any]:
    if run.is_file():
        raise CiglError(f"{run} is a file: to write a .cigl file, give the folder of a finished run.")
    with importing():
        import cigl
        from cigl.train.folder.finished import finished_run

    done = finished_run(run)
    about = {"config": done.config.plain(), "classes": len(done.classes), "shape": list(done.shape)}
    cigl.save(
        done.model,
        file,
        half=half,
        temperature=done.temperature,
        report=done.report,
        about=about,
        classes=done.classes,
        preprocessing=done.preprocessing,
    )
    return cigl.runtime.describe(file)


def _to_onnx(run: Path, file: Path) -> dict[str, Any]:
    with importing():
        import torch

        import cigl
        from cigl.runtime.format.entries import entries
        from cigl.runtime.onnx_files import OUTPUTS

    given = opened(run, fast=False)
    if given.shape is None:
        raise CiglError(
            f"{run} doesn't say what its inputs look like: export it from Python, "
            "cigl.export_onnx(cigl.load(file, engine='dense'), path, example_inputs=(x,))."
        )
    cigl.export_onnx(
        given.model,
        file,
        example_inputs=(torch.zeros(1, *given.shape),),
        temperature=given.temperature,
        classes=given.classes,
        preprocessing=given.preprocessing,
    )
    parameters = list(given.model.parameters())
    return {
        "bytes": file.stat().st_size,
        "parameters": sum(each.numel() for each in parameters),
        "nonzeros": sum(int(each.count_nonzero()) for each in parameters),
        "shape": list(given.shape),
        "outputs": OUTPUTS,
        "temperature": given.temperature,
        **entries(given.classes, given.preprocessing),
    }
