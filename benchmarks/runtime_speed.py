"""How fast sparse networks run: our engine against torch and ONNX Runtime, which gain nothing from zeros.

All engines run in turns, each warm, with freed memory kept and in a process of its own; medians. torch has images in
the faster of its two layouts. Weights are ERK-sparse at random, batch norms have
random statistics.
The floors are what issue 7 asks for against ONNX Runtime on one thread (within a tenth counts).

python benchmarks/runtime_speed.py [--quick] [--case NAME ...] [--threads 1 2] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads must not take the core from the engine measured

import torch
from engines import Call, in_turns, serve
from torch import Tensor, nn

import cigl
from cigl.runtime.bench import RIVALS, in_torch, multiply_adds
from cigl.runtime.program import library

CASES = {
    "mlp": ("mlp-1000-1000", (784,), 10, 64, (3.8, 7, 20)),
    "wrn": ("wrn-22-2", (3, 32, 32), 10, 64, (2.5, 4.5, 9)),
    "wrn-1": ("wrn-22-2", (3, 32, 32), 10, 1, (2, 3.5, 8)),
    "resnet50": ("resnet50", (3, 32, 32), 10, 16, (2.2, 3.8, 8)),
    "resnet50-224-1": ("resnet50", (3, 224, 224), 1000, 1, (1.5, 2.8, 6)),
}
SPARSE, NEARLY_DENSE = (0.9, 0.95, 0.99), (0.0, 0.5, 0.7)


def model_of(name: str, classes: int, shape: tuple[int, ...], sparsity: float) -> nn.Module:
    """As training would leave it: ERK-sparse, with batch norms that are not the identity."""
    torch.manual_seed(0)
    model = cigl.models.build(name, classes, shape)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert isinstance(module.running_mean, Tensor)
            assert isinstance(module.running_var, Tensor)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    if sparsity:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = cigl.attach(model, optimizer, "static", sparsity=sparsity, epochs=1, steps_per_epoch=10).finalize()
    return model.eval()


def in_csr(model: nn.Module, x: Tensor, threads: int) -> Call:
    """torch's own sparse matrices, for linear layers."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = [(layer.weight.detach().to_sparse_csr(), layer.bias.detach()[:, None]) for layer in layers]

    def call() -> Tensor:
        y = x.T
        for number, (weight, bias) in enumerate(weights):
            y = weight @ y + bias
            y = y.relu() if number < len(weights) - 1 else y
        return y.T

    return call


ENGINES = {**RIVALS, "csr": in_csr}


def serve_engine(engine: str, case: str, sparsity: float, threads: int) -> None:
    name, shape, classes, batch, _ = CASES[case]
    torch.set_num_threads(threads)
    model, x = model_of(name, classes, shape, sparsity), torch.randn(batch, *shape)
    if engine != "cigl":
        serve(ENGINES[engine](model, x, threads), {})
        return
    fast = cigl.sparse_inference(model)
    with torch.inference_mode():
        expected = model(x)
        error = float((fast(x) - expected).abs().max() / expected.abs().max())
    [entry] = fast.plan()["shapes"]
    facts = {
        "error": error,
        "operations": 2 * multiply_adds(entry),
        "peak": library.fma_peak(),
        "memory": fast.bytes / sum(parameter.nbytes for parameter in model.parameters()),
        "sparse": sum(row["runs"] == "sparse" for row in entry["units"]),
        "units": len(entry["units"]),
    }
    serve(in_torch(fast, x, threads), facts)


def measure(case: str, sparsity: float, threads: int, seconds: float, dense_too: bool) -> dict:
    """Per engine the seconds of a call, and the facts of ours."""
    engines = ["cigl", "torch"]
    if dense_too:
        engines += [*(["csr"] if len(CASES[case][1]) == 1 else []), "onnxruntime"]
    found = in_turns(__file__, engines, {"case": case, "sparsity": sparsity, "threads": threads}, seconds)
    error = found["cigl"]["error"]
    assert error <= 1e-4, f"{case}: the outputs differ by {error:.1e}"
    return found


def show_sparse(case: str, threads: int, sparsities: tuple[float, ...], seconds: float) -> None:
    name, shape, _, batch, floors = CASES[case]
    for sparsity, floor in zip(SPARSE, floors, strict=True):
        if sparsity not in sparsities:
            continue
        found = measure(case, sparsity, threads, seconds, dense_too=True)
        times = "  ".join(f"{engine} {1000 * each['seconds']:.2f}" for engine, each in found.items())
        ours = found["cigl"]
        ratio = found["onnxruntime"]["seconds"] / ours["seconds"] if "onnxruntime" in found else float("nan")
        speed = ours["operations"] / ours["seconds"]
        print(
            f"{name} {'x'.join(map(str, shape))} batch {batch}, {threads} thread{'s' * (threads > 1)}, {sparsity:.0%}: "
            f"{ratio:.2f} x onnxruntime" + (f" (floor {floor})" if threads == 1 else "") + f" | ms: {times} | "
            f"{speed / 1e9:.1f} GFLOP/s on non-zeros, {speed / ours['peak'] / threads:.0%} of the peak "
            f"{ours['peak'] / 1e9:.0f} | memory {ours['memory']:.2f} of the dense weights | "
            f"{ours['sparse']} of {ours['units']} units sparse",
            flush=True,
        )


def show_nearly_dense(case: str, threads: int, seconds: float) -> None:
    name, shape, _, batch, _ = CASES[case]
    for sparsity in NEARLY_DENSE:
        found = measure(case, sparsity, threads, seconds, dense_too=False)
        ours = found["cigl"]
        slower = ours["seconds"] / found["torch"]["seconds"]
        print(
            f"{name} {'x'.join(map(str, shape))} batch {batch}, {threads} thread{'s' * (threads > 1)}, {sparsity:.0%}: "
            f"{slower:.2f} of torch's time (at most 1.1), {ours['sparse']} of {ours['units']} units sparse",
            flush=True,
        )


def show_loading(sparsity: float = 0.95) -> None:
    name, shape, classes, _, _ = CASES["resnet50-224-1"]
    model = model_of(name, classes, shape, sparsity)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.cigl")
        cigl.save(model, path)
        size = os.path.getsize(path)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            cigl.load(path)
            times.append(time.perf_counter() - start)
    print(f"{name} at {sparsity:.0%}: {size / 1e6:.2f} MB on disk, loaded in {sorted(times)[2]:.2f} s (at most 0.5)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="95 %% alone, on one thread, in about a minute")
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--part", choices=["sparse", "nearly-dense", "loading"], help="one part alone")
    options = parser.parse_args()
    threads, seconds = ([1], min(2.0, options.seconds)) if options.quick else (options.threads, options.seconds)
    for number in threads:
        for case in options.case:
            if options.part in (None, "sparse"):
                show_sparse(case, number, (0.95,) if options.quick else SPARSE, seconds)
            if options.part == "nearly-dense" or (options.part is None and not options.quick):
                show_nearly_dense(case, number, seconds / 2)
    if options.part in (None, "loading"):
        show_loading()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--serve"]:
        serve_engine(sys.argv[2], **json.loads(sys.argv[3]))
    else:
        main()
