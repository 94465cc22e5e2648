"""How fast a model runs here: the sparse engine and dense ones, warm, interleaved in one process, medians."""

from __future__ import annotations

import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.allocation import keep_freed_memory
from cigl.common.errors import unknown
from cigl.common.extras import from_extra
from cigl.common.text import first_line
from cigl.runtime.engine import SparseInference
from cigl.runtime.network import operations as op
from cigl.runtime.onnx_files import quiet
from cigl.runtime.program import library

Call = Callable[[], object]
LEAST_ROUNDS = 5
TURN = 0.02  # seconds: what is faster is called several times in its turn
WARM_UP, SETTLED = 3.0, 5  # seconds at most; calls without a faster one
_FASTER = 0.98  # of the time


def interleaved(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The median time of each. They run in turns, so that what disturbs one disturbs all; the first call of a turn,
    which finds its weights where the one before left them, in memory or in a cache, is not counted."""
    for call in calls.values():
        warm_up(call)
    repeats = {name: max(1, int(TURN / _seconds(call, 1))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < LEAST_ROUNDS:
        for name, call in calls.items():
            call()
            times[name].append(_seconds(call, repeats[name]))
        rounds += 1
    return {name: statistics.median(each) for name, each in times.items()}


def warm_up(call: Call) -> None:
    """Call until times settle: the first calls allocate memory, choose algorithms and wake up the processor."""
    best, since, end = math.inf, 0, time.perf_counter() + WARM_UP
    while since < SETTLED and time.perf_counter() < end:
        seconds = _seconds(call, 1)
        since = 0 if seconds < _FASTER * best else since + 1
        best = min(best, seconds)


def _seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def in_torch(model: nn.Module, x: Tensor, threads: int) -> Call:
    """Plain eager torch."""

    def call() -> object:
        with torch.inference_mode():
            return model(x)

    return call


def in_faster_torch(model: nn.Module, x: Tensor, threads: int) -> Call:
    """Eager torch with images in the layout that is faster for this model: channels_last, or torch's default."""
    calls = [in_torch(model, x, threads)]
    if x.dim() == 4:
        last = torch.channels_last
        model = copy.deepcopy(model).to(memory_format=last)  # type: ignore[call-overload]
        calls.append(in_torch(model, x.contiguous(memory_format=last), threads))
    for call in calls:
        warm_up(call)
    return min(calls, key=lambda call: min(_seconds(call, 1) for _ in range(3)))


def in_onnxruntime(model: nn.Module, x: Tensor, threads: int) -> Call:
    """ONNX Runtime, the fastest dense engine for CPUs that we know of."""
    with from_extra("bench", "times of ONNX Runtime"):
        import onnxruntime
        import onnxscript  # noqa: F401  (the exporter needs it)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        with quiet():
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


Maker = Callable[[nn.Module, Tensor, int], Call]
RIVALS: dict[str, Maker] = {"torch": in_faster_torch, "onnxruntime": in_onnxruntime}


def rivals(names: Sequence[str]) -> dict[str, Maker]:
    """The engines of these names."""
    for name in names:
        if name not in RIVALS:
            raise unknown("engine", name, RIVALS)
    return {name: RIVALS[name] for name in names}


def multiply_adds(entry: dict[str, Any]) -> int:
    """On non-zero weights, for the whole batch, from an entry of a plan."""
    rows = [row for row in entry["units"] if {"nonzeros", "shape", "weight"} <= row.keys()]
    return sum(op.multiply_adds(row["nonzeros"], max([1, *row["weight"][:1]]), row["shape"]) for row in rows)


def bench(
    model: nn.Module,
    fast: SparseInference,
    x: Tensor,
    rivals: Mapping[str, Maker],
    *,
    threads: int,
    seconds: float,
) -> dict[str, Any]:
    """Times of ``fast`` and of others that run the dense ``model``, on ``x``; plain data.

    A rival that can't run here is listed as missing, with the reason. Memory that is freed stays with the process, so
    that no engine's times are those of the system handing out pages.
    """
    kept = keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        calls: dict[str, Call] = {"cigl": in_torch(fast, x, threads)}
        missing: dict[str, str] = {}
        for name, make in rivals.items():
            try:
                calls[name] = make(model, x, threads)
            except Exception as error:  # exporters fail in many ways; the other rows are still of use
                missing[name] = first_line(error)
        times = interleaved(calls, seconds)
        peak = library.fma_peak() if library.available() else None
    finally:
        torch.set_num_threads(before)
    entries = _entries(fast.plan(), x)
    units = [row for entry in entries for row in entry["units"]]
    work = 2 * sum(map(multiply_adds, entries))
    held = fast.weight_bytes
    return {
        "shape": list(x.shape),
        "threads": threads,
        "milliseconds": {name: 1000 * each for name, each in times.items()},
        "ratios": {name: times[name] / times["cigl"] for name in times if name != "cigl"},
        "missing": missing,
        "kernels": library.isa() if library.available() else None,
        "gflops_on_nonzeros": work / times["cigl"] / 1e9,
        "peak_gflops": None if peak is None else peak / 1e9,
        "share_of_peak": None if peak is None else work / times["cigl"] / (peak * threads),
        "freed_memory_kept": kept,
        "bytes": fast.bytes,
        "weight_bytes": held,
        "dense_bytes": sum(each.nbytes for each in (*model.parameters(), *model.buffers())),
        "buffer_bytes": fast.bytes - held,
        "sparse_units": sum(row["runs"] == "sparse" for row in units),
        "units": len(units),
    }


def _entries(plan: dict[str, Any], x: Tensor) -> list[dict[str, Any]]:
    """What runs for ``x``: of a model that torch runs, the layers that have engines, for the shapes that they saw."""
    if own := [entry for entry in plan["shapes"] if entry["inputs"] == [list(x.shape)]]:
        return own
    return [entry for layer in plan.get("layers", {}).values() for entry in layer["shapes"]]
