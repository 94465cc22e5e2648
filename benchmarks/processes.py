"""What several processes send each other: bytes per step and per topology round, at 1, 2 and 4 processes (gloo, CPU).

    python benchmarks/processes.py [--width 1024] [--steps 12]

Every process counts the bytes of its own tensors that go into collectives. Those of FSDP2 and DistributedDataParallel
themselves are the price of training on several processes; what cigl adds is counted apart. Times are medians, of
processes that share this machine's cores: only their ratio says something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import cigl

EVERY = 4  # steps between topology rounds


class Bytes(TorchDispatchMode):
    """Of the tensors that this process puts into collectives."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name = str(func)
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            if "allgather" in name or "reduce_scatter" in name:  # output and input
                tensors = [max(tensors, key=lambda t: t.numel())]
            self.count += sum(t.numel() * t.element_size() for t in tensors)
        return func(*args, **(kwargs or {}))


def measure(kind: str, rank: int, ranks: int, folder: str, width: int, steps: int) -> None:
    warnings.simplefilter("ignore", cigl.CiglWarning)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    if ranks > 1:
        store = distributed.FileStore(f"{folder}/store", ranks)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (ranks,))
            for part in (model[0], model[2], model):  # type: ignore[index]
                fully_shard(part, mesh=mesh)
        else:
            model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sparse = cigl.attach(
        model, optimizer, "cigl", sparsity=0.9, epochs=steps, steps_per_epoch=1, update_every=EVERY, kernels="masked"
    )
    found: dict[str, dict[str, list[float]]] = {k: {"bytes": [], "added": [], "seconds": []} for k in ("step", "round")}
    for number in range(1, steps + 1):
        x, y = torch.randn(32, width), torch.randint(10, (32,))
        counted = Bytes()
        with counted:
            F.cross_entropy(model(x), y).backward()
            own = counted.count
            begin = time.perf_counter()
            optimizer.step()
        seconds = time.perf_counter() - begin
        optimizer.zero_grad()
        place = found["round" if sparse.table.updates(number) else "step"]
        place["bytes"].append(own)
        place["added"].append(counted.count - own)
        place["seconds"].append(seconds)
    if rank == 0:
        weights = sum(layer.size for layer in sparse.layers)
        held = sum(t.numel() * t.element_size() for layer in sparse.layers for t in (layer.bits, layer.explored))
        held += sum(t.numel() * t.element_size() for t in sparse.collection.mean.values())
        result = {k: {name: median(v) for name, v in values.items() if v} for k, values in found.items()}
        Path(folder, "result.json").write_text(json.dumps({**result, "weights": weights, "held": held / weights}))
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, rank, ranks, folder = options.worker
        measure(kind, int(rank), int(ranks), folder, options.width, options.steps)
        return
    head = ("per step", "per round", "of weights", "step", "round", "ratio", "per weight")
    print(f"{'':14}{'cigl adds, bytes':>34}{'seconds in optimizer.step()':>34}{'bytes held':>12}")
    print(f"{'':14}" + "".join(f"{name:>{11 if n == 2 else 12}}" for n, name in enumerate(head)))
    for kind, ranks in (("fsdp", 1), ("fsdp", 2), ("fsdp", 4), ("ddp", 2), ("ddp", 4)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--width", str(options.width), "--steps", str(options.steps)]
            workers = [
                subprocess.Popen([*command, "--worker", kind, str(rank), str(ranks), folder]) for rank in range(ranks)
            ]
            if any(worker.wait() for worker in workers):
                raise SystemExit(f"{kind} with {ranks} processes failed.")
            r = json.loads(Path(folder, "result.json").read_text())
        step, around = r["step"], r["round"]
        share = around["added"] / (4 * r["weights"])
        name = "one process" if ranks == 1 else f"{kind.upper()}, {ranks}"
        ratio = around["seconds"] / step["seconds"]
        print(
            f"{name:14}{step['added']:>12,.0f}{around['added']:>12,.0f}{share:>11.2%}{step['seconds']:>12.4f}"
            f"{around['seconds']:>12.4f}{ratio:>12.1f}{r['held']:>12.2f}",
            f"  (own, in forward and backward: {step['bytes']:,.0f} per step)",
        )


if __name__ == "__main__":
    main()
