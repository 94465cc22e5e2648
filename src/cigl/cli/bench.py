"""cigl bench."""

from __future__ import annotations

import json
import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cigl.cli.opening import opened
from cigl.cli.shared import Json, app, argument, command, importing, option, show_next
from cigl.common.errors import CiglError
from cigl.common.phases import phase
from cigl.common.progress import status_line
from cigl.common.text import count, percent

if TYPE_CHECKING:
    from cigl.runtime import SparseInference


@command(app, "bench")
def bench_command(
    model: Annotated[Path, argument("a .cigl file, or the folder of a finished run")],
    batch: Annotated[int, typer.Option(min=1, help="batch size")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each engine")] = 1,
    against: Annotated[str, typer.Option(help="dense engines to compare with: torch, onnxruntime or both")] = "torch",
    shape: Annotated[str, option("shape of one input, such as 3x224x224, if the file does not have it")] = "",
    seconds: Annotated[float, typer.Option(min=0.0, help="how long to measure")] = 5.0,
    as_json: Json = False,
) -> None:
    """Measure how fast a saved model runs on this machine.

    Its sparse kernels and dense engines take turns on random inputs, each warmed up until its times settle; the medians
    are shown. The engine onnxruntime needs pip install 'cigl[bench]'.

    \b
    Examples:
      cigl bench model.cigl
      cigl bench model.cigl --batch 64 --against torch,onnxruntime
    """
    with status_line(as_json):
        with importing():
            import torch

            import cigl
            from cigl.runtime import bench as measuring

        rivals = measuring.rivals([name.strip() for name in against.split(",") if name.strip()])
        with phase(f"loading {model.name}"):
            dense = opened(model, fast=False)
            start = time.perf_counter()
            fast = cast("SparseInference", cigl.load(model) if model.is_file() else cigl.sparse_inference(dense.model))
            loaded = time.perf_counter() - start
        x = torch.randn(batch, *_shape(shape, dense.shape, fast.plan(), model))
        with phase("measuring"):
            found = measuring.bench(dense.model, fast, x, rivals, threads=threads, seconds=seconds)
    found["load_seconds"] = loaded
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(_table(found))
    name, again = shlex.quote(str(model)), f" --shape {shape}" * bool(shape)
    steps = [(f"cigl predict {name} photo.jpg", "classes of images, with probabilities")]
    if batch == 1:
        steps.append((f"cigl bench {name} --batch 64{again}", "its speed on batches of 64"))
    if "onnxruntime" not in rivals:
        steps.append((f"cigl bench {name} --against torch,onnxruntime{again}", "against ONNX Runtime too"))
    show_next(*steps[dense.preprocessing is None :])


def _shape(asked: str, known: tuple[int, ...] | None, plan: dict[str, Any], file: Path) -> list[int]:
    """Of one input: as asked for, as the run was trained, or as the plan was made for."""
    found: Any = None
    if asked:
        sizes = asked.lower().replace(",", "x").split("x")
        found = [int(size) if size.isdecimal() else 0 for size in sizes]
    elif known is not None:
        found = known
    elif plan["shapes"]:
        found = plan["shapes"][0]["inputs"][0][1:]
    if not found or not all(type(size) is int and size > 0 for size in found) or math.prod(found) >= 2**28:
        raise CiglError(f"{file} doesn't say what its inputs look like: add the shape of one, such as --shape 3x32x32.")
    return list(found)


def _table(found: dict[str, Any]) -> str:
    times, ratios = found["milliseconds"], found["ratios"]
    lines = [f"{'x'.join(map(str, found['shape']))}, {count(found['threads'], 'thread')}"]
    lines += [f"{'engine':<12} {'ms':>10} {'against cigl':>13}"]
    lines += [f"{name:<12} {each:>10.3f} {ratios.get(name, 1.0):>12.2f}x" for name, each in times.items()]
    lines += [f"{name:<12} {'-':>10}   {reason}" for name, reason in found["missing"].items()]
    share = found["share_of_peak"]
    peak = "" if share is None else f", {percent(share, 0)} of the {found['peak_gflops']:.0f} that a core can do"
    lines += [
        f"{found['gflops_on_nonzeros']:.1f} GFLOP/s on non-zeros{peak}",
        f"{found['sparse_units']} of {found['units']} operations run sparse, on {found['kernels'] or 'no'} kernels",
        f"weights {found['weight_bytes'] / 1e6:.2f} MB, of {found['dense_bytes'] / 1e6:.2f} MB dense "
        f"({percent(found['weight_bytes'] / found['dense_bytes'], 0)}); buffers for this batch "
        f"{found['buffer_bytes'] / 1e6:.2f} MB; loaded in {found['load_seconds']:.2f} s",
        "medians, taken in turns after warming each engine up until its times settled; torch in the faster layout"
        + "; freed memory is kept, so that no engine waits for pages" * found["freed_memory_kept"],
    ]
    return "\n".join(lines)
