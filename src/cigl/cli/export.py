"""cigl export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cigl.cli.shared import Json, app, errors_in_one_line
from cigl.errors import CiglError


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    file: Annotated[Path, typer.Argument(help="the file to write, for example model.cigl")],
    half: Annotated[bool, typer.Option("--half", help="weights in fp16: a third smaller")] = False,
    as_json: Json = False,
) -> None:
    """Write a finished run's model to one small file, for cigl.load.

    The file holds the non-zeros, the operations (no class is needed to load it), the run's temperature, if it has
    one, and its calibration report.

    Example:

      cigl export runs/001 model.cigl
    """
    with errors_in_one_line():
        import cigl
        from cigl import tensors
        from cigl.calibrate import Report
        from cigl.train.folder import RunFolder
        from cigl.train.trainer import method_of

        folder = RunFolder(run)
        config = folder.read_config()
        if not folder.is_finished:
            raise CiglError(f"the run in {run} is not finished: resume it with `cigl train --resume {run}`.")
        if method_of(config).predicts_with == "members":
            raise CiglError(
                f"{config.method} predicts with the average over several models, and a file holds one: "
                "export a run of another method, such as cigl."
            )
        source = cigl.data.open(config.dataset, seed=0)
        model = cigl.models.build(config.model, source.classes, source.shape)
        model.load_state_dict(tensors.load(run / "model.safetensors"))
        temperature = folder.read_json("result.json")["temperature"]
        report = Report.from_json(run / ("report.json" if temperature is None else "report-temperature.json"))
        about = {"config": config.plain(), "classes": source.classes, "shape": list(source.shape)}
        cigl.save(model, file, half=half, temperature=temperature, report=report, about=about)
        found = cigl.runtime.describe(file)
        if as_json:
            typer.echo(json.dumps({"file": str(file)} | found))
        else:
            share, dense = found["nonzeros"] / found["parameters"], 4e-6 * found["parameters"]
            typer.echo(
                f"{file}: {found['bytes'] / 1e6:.2f} MB for {found['nonzeros']:,} of {found['parameters']:,} "
                f"parameters ({share:.1%}; dense fp32: {dense:.2f} MB)"
            )
            typer.echo(f"load it: cigl.load({str(file)!r}{', into=model' if found['outside'] else ''})")
