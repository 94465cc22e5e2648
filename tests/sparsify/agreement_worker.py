"""One of two processes of test_agreement.py: masks with and without DistributedDataParallel."""

import json
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from loops import attach, batch, mlp, sgd, step
from torch.nn.parallel import DistributedDataParallel

import cigl

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
store = dist.FileStore(f"{folder}/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=200))
results = {}


def built(method, **options):
    torch.manual_seed(0)
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    return model, optimizer, attach(model, optimizer, method, **options)


def average_by_hand(model, optimizer, number, average=True, update=True):
    x, y = batch(number)
    optimizer.zero_grad()
    F.cross_entropy(model(x.chunk(2)[rank]), y.chunk(2)[rank]).backward()
    for p in model.parameters() if average else ():
        dist.all_reduce(p.grad)
        p.grad /= 2
    if update:
        optimizer.step()


def hand_averaged(method, steps=12, average=True, **options):
    """The step before which it was refused, and how."""
    model, optimizer, sparse = built(method, **options)
    refused = None, ""
    for number in range(1, steps + 1):
        try:
            average_by_hand(model, optimizer, number, average, update=refused[0] is None)
        except cigl.CiglError as error:
            refused = number, str(error)
        dist.barrier()  # so that the other's record is there in the next step at the latest
    if refused[0] is None:
        sparse.finalize(average=False)
    return refused


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    results["grown apart"] = hand_averaged("rigl", update_every=4)
    results["other seeds"] = hand_averaged("static", seed=rank)
    results["the same"] = hand_averaged("set", update_every=4)  # grows at random, the same everywhere
    results["two models"] = hand_averaged("rigl", update_every=4, average=False)  # each process its own
    dist.barrier()

    # Only one process trains; the other does something else.
    if rank == 0:
        model, optimizer, sparse = built("rigl")
        for number in range(1, 8):
            step(model, optimizer, number)
        results["alone"] = sparse.step
        sparse.finalize()
    dist.barrier()

    # One process has skipped a step: found when both come to their results.
    model, optimizer, sparse = built("set", update_every=100)
    for number in range(1, 5):
        if not (number == 4 and rank):
            average_by_hand(model, optimizer, number, average=number < 4)
        dist.barrier()
    if rank:
        dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sparse.finalize()
    if not rank:
        dist.barrier()
    results["skipped"] = [str(w.message) for w in caught]

    # finalize under DDP, of a model that holds its sparsifier
    model, optimizer, sparse = built("rigl", update_every=2)
    model.sparse = sparse
    ddp = DistributedDataParallel(model)
    for number in range(1, 4):
        average_by_hand(ddp, optimizer, number, average=False)
    final = sparse.finalize()
    results["finalized"] = not hasattr(final, "sparse") and type(final).__name__

    # join(), with different numbers of batches
    for method in ("rigl", "static"):
        model, optimizer, sparse = built(method, update_every=2) if method == "rigl" else built(method)
        ddp = DistributedDataParallel(model)
        try:
            with ddp.join():
                for number in range(1, 6 + 3 * rank):
                    average_by_hand(ddp, optimizer, number, average=False)
            results[f"join {method}"] = [sparse.step, bool((model[0].weight[~sparse.masks["0.weight"]] == 0).all())]
        except cigl.CiglError as error:
            results[f"join {method}"] = str(error)

    # DDP: masks and layers that differ are named with the ranks
    for name, options in {"seed": {"seed": rank}, "layers": {"layers": {"2": False} if rank else {}}}.items():
        model, optimizer, _ = built("rigl", **options)
        try:
            DistributedDataParallel(model)(batch(1)[0])
        except cigl.CiglError as error:
            results[f"ddp {name}"] = str(error)

with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(results, file)
dist.destroy_process_group()
sys.stderr.flush()
os._exit(0)  # DDP holds the process group, and torch's gloo threads may abort an interpreter that ends before them
