"""Other people's networks on our engine, on torch and on ONNX Runtime: medians of times in turns in one process.

Each engine is warmed up until its times settle; freed memory is kept, so that none waits for the system's pages.

python benchmarks/runtime_networks.py --prepare          # writes .cigl and .onnx files, which takes minutes
python benchmarks/runtime_networks.py [--network NAME ...] [--batch 1 16] [--sparsity 0.9 0.95] [--seconds 4]
python benchmarks/runtime_networks.py --part shapes --network bert-base
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads must not take the core from the engine measured

import torch
from networks import NETWORKS, pruned

import cigl
from cigl.common.allocation import keep_freed_memory
from cigl.runtime.bench import RIVALS, Call, in_torch, interleaved


def made(name: str, sparsity: float) -> tuple[torch.nn.Module, object]:
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    return pruned(model, sparsity), inputs


def prepare(name: str, sparsity: float, folder: Path) -> tuple[Path, Path]:
    """The files of both engines."""
    ours, theirs = (folder / f"{name}-{sparsity:g}.{suffix}" for suffix in ("cigl", "onnx"))
    if not (ours.exists() and theirs.exists()):
        model, inputs = made(name, sparsity)
        example = (inputs(2),)
        batch = torch.export.Dim("batch", min=1, max=1024)
        torch.onnx.export(model, example, theirs, dynamo=True, verbose=False, dynamic_shapes=({0: batch},))
        is_recurrent = any(isinstance(module, torch.nn.RNNBase) for module in model.modules())
        cigl.save(model, ours, example_inputs=None if is_recurrent else example)  # which torch.fx traces as a module
    return ours, theirs


def in_onnxruntime(path: Path, x: torch.Tensor, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def show(name: str, sparsity: float, batch: int, folder: Path, seconds: float) -> None:
    ours, theirs = prepare(name, sparsity, folder)
    model, inputs = made(name, sparsity)
    x, fast = inputs(batch), cigl.load(ours)
    with torch.no_grad():
        expected = model(x)
    start = time.perf_counter()
    found = fast(x)
    first = time.perf_counter() - start
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= 1e-4, f"{name}: the outputs differ by {error:.1e}"
    calls = {
        "cigl": in_torch(fast, x, 1),
        "torch": RIVALS["torch"](model, x, 1),
        "onnxruntime": in_onnxruntime(theirs, x, 1),
    }
    times = interleaved(calls, seconds)
    units = fast.plan()["shapes"][0]["units"]
    layers = [unit for unit in units if "weight" in unit]
    print(
        f"{name} batch {batch}, {sparsity:.0%}: {times['onnxruntime'] / times['cigl']:.2f} x onnxruntime, "
        f"{times['torch'] / times['cigl']:.2f} x torch | ms: "
        + "  ".join(f"{engine} {1000 * each:.1f}" for engine, each in times.items())
        + f" | first call {first:.1f} s | {sum(unit['runs'] == 'sparse' for unit in layers)} of {len(layers)} layers "
        "sparse",
        flush=True,
    )


def show_shapes(name: str, sparsity: float, folder: Path) -> None:
    """Twelve lengths in turn, when all have been seen once."""
    torch.manual_seed(0)
    model, _ = made(name, sparsity)
    fast = cigl.load(prepare(name, sparsity, folder)[0])
    inputs = [torch.randint(5, 1000, (1, length)) for length in range(40, 136, 8)]
    start = time.perf_counter()
    for x in inputs:
        fast(x)
    first = time.perf_counter() - start

    def turn(run: torch.nn.Module) -> Call:
        def call() -> None:
            with torch.inference_mode():
                for x in inputs:
                    run(x)

        return call

    times = interleaved({"cigl": turn(fast), "torch": turn(model)}, 4.0)
    per_call = {engine: f"{1000 * each / len(inputs):.1f} ms" for engine, each in times.items()}
    print(f"{name} {sparsity:.0%}, {len(inputs)} lengths in turn: {per_call}; the first turn {first:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--sparsity", nargs="*", type=float, default=[0.9, 0.95])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cigl-networks")
    parser.add_argument("--prepare", action="store_true", help="write the files alone")
    parser.add_argument("--part", choices=["speed", "shapes"], default="speed")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True, parents=True)
    keep_freed_memory()
    torch.set_num_threads(1)
    for name in options.network:
        for sparsity in options.sparsity:
            if options.prepare:
                prepare(name, sparsity, options.folder)
            elif options.part == "shapes":
                show_shapes(name, sparsity, options.folder)
            else:
                for batch in options.batch:
                    show(name, sparsity, batch, options.folder, options.seconds)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
