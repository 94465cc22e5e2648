"""The callbacks under DistributedDataParallel: two processes on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import density, plain_loop, same

WORKER = Path(__file__).with_name("process_worker.py")
OPTIONS = {"sparsity": 0.8, "update_every": 3, "random_mask": 0.2, "epochs": 32, "steps_per_epoch": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformers", "lightning"])
def test_two_processes_train_what_one_does(tmp_path, kind):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    run += ["--rdzv-endpoint=localhost:0", str(WORKER), kind, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert same(first["masks"], second["masks"])
    assert same(first["model"], second["model"])
    final, sparse = plain_loop(8, 6, accumulate=2, clip=0.5, **OPTIONS)
    assert same(first["masks"], sparse.masks)
    assert density(final) < 0.201
    for name, value in final.state_dict().items():  # sums over the processes are rounded in another order
        torch.testing.assert_close(first["model"][name], value, rtol=1e-4, atol=1e-6)
    if kind == "transformers":
        assert (tmp_path / "checkpoint-16" / "cigl.safetensors").exists()
