"""One of two processes of test_binding.py: half of each batch, gloo, DistributedDataParallel."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from loops import LARGE_MASKS, assert_zero_outside, attach, batch, mlp, sgd
from torch.nn.parallel import DistributedDataParallel

import cigl

order, rank, folder, kernels = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
method = LARGE_MASKS[sys.argv[5]]
torch.set_num_threads(1)
store = dist.FileStore(f"{folder}/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
torch.manual_seed(0)
model = mlp()
if order == "before":
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, method, kernels=kernels)
    ddp = DistributedDataParallel(model)
else:
    ddp = DistributedDataParallel(model)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(ddp, optimizer, method, kernels=kernels)
for number in range(1, 11):
    x, y = batch(number)
    optimizer.zero_grad()
    parts = 2 if order == "accumulate" else 1  # micro-batches, each reduced at once (no no_sync)
    for part in range(parts):
        place = rank * parts + part
        loss = F.cross_entropy(ddp(x.chunk(2 * parts)[place]), y.chunk(2 * parts)[place]) / parts
        loss.backward()
    optimizer.step()
    assert_zero_outside(sparse)
assert all(row.kernels == kernels for row in sparse.summary().rows)
saved = {"masks": sparse.masks, "model": {k: v.clone() for k, v in model.state_dict().items()}}

# Processes whose masks differ are named.
torch.manual_seed(0)
other = mlp()
optimizer = sgd(other)
attach(other, optimizer, "cigl", seed=rank)
ddp = DistributedDataParallel(other)
try:
    ddp(batch(1)[0])
    saved["refused"] = False
except cigl.CiglError as error:
    saved["refused"] = "different masks" in str(error)

# What one process has observed acts in both.
torch.manual_seed(0)
observing = mlp()
optimizer = sgd(observing)
sparse = attach(observing, optimizer, cigl.method("cigl-auto", patience=0))
ddp = DistributedDataParallel(observing)
if rank == 0:
    logits = torch.zeros(1000, 4, dtype=torch.float64)
    logits[:, 0] = 3.0
    sparse.observe(logits, torch.arange(1000) % 4)
for number in range(1, 6):
    F.cross_entropy(ddp(batch(number)[0]), batch(number)[1]).backward()
    optimizer.step()
saved["strength"] = sparse.controller.strength
torch.save(saved, f"{folder}/{rank}.pt")
dist.destroy_process_group()
sys.stderr.flush()
os._exit(0)  # DDP holds the process group, and torch's gloo threads may abort an interpreter that ends before them
