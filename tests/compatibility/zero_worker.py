"""One of two processes of test_zero_on_two_processes: SGD, and the same with its state divided over the processes."""

import os
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import cigl

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def train(divided: bool) -> tuple[nn.Module, cigl.Sparsifier]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    ddp = DistributedDataParallel(model)
    if divided:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    sparse = cigl.attach(model, optimizer, "cigl", sparsity=0.8, epochs=6, steps_per_epoch=10, update_every=10)
    for number in range(60):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(16, 12, generator=generator)[rank::ranks]
        y = torch.randint(0, 4, (16,), generator=generator)[rank::ranks]
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    return model, sparse


(whole, plain), (model, sparse) = train(False), train(True)
assert sparse.step == 60
assert all(torch.equal(mask, sparse.masks[name]) for name, mask in plain.masks.items())
assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
print(f"process {rank} is right", flush=True)
dist.destroy_process_group()
os._exit(0)  # DDP holds the process group, and torch's gloo threads may abort an interpreter that ends before them
