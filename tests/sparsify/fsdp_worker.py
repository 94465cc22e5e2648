"""One of several processes of test_sharded.py: its share of each batch, gloo, FSDP2. Run as script.

    fsdp_worker.py SCENARIO RANK RANKS FOLDER

It trains the model of ``network()`` and leaves what it has come to in FOLDER, rank 0 for all.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from loops import batch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import cigl

warnings.simplefilter("ignore", cigl.CiglWarning)
# What a layer's parameter becomes when it is sharded is not a weight that was added.
warnings.filterwarnings("error", ".*was frozen or not yet in the model", cigl.CiglWarning)
torch.set_num_threads(1)


def network() -> nn.Module:
    """A convolution with fewer rows than some meshes have processes, and layers that don't divide evenly."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 26), nn.ReLU(), nn.Linear(26, 4)
    ).double()


def optimizer_of(model, kind):
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    }
    return kinds[kind](model.parameters())


def shard(model, ranks, hybrid=False, **options):
    mesh = init_device_mesh("cpu", (ranks,))
    if hybrid:
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copies", "parts"))
    fully_shard(model[3], mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def attach(model, optimizer, method, steps, **options):
    method = cigl.method(method, **options) if options else method
    return cigl.attach(
        model, optimizer, method, sparsity=0.7, epochs=steps // 4, steps_per_epoch=4, update_every=max(3, steps // 3)
    )


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(model, optimizer, first, last, rank, ranks, parts=1, no_sync=False, clip=False):
    for number in range(first, last + 1):
        x, y = batch(number, (16, 2, 4, 4))
        x, y = x.double().chunk(ranks * parts), y.chunk(ranks * parts)
        optimizer.zero_grad()
        for part in range(parts):
            if no_sync:
                model.set_requires_gradient_sync(part == parts - 1)
            place = rank * parts + part
            (F.cross_entropy(model(x[place]).double(), y[place]) / parts).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def result(model, sparse, optimizer, whole_model):
    return {
        "masks": {name: whole(mask) for name, mask in sparse.masks.items()},
        "weights": {name: whole(value) for name, value in model.state_dict().items()},
        "final": whole_model.state_dict(),
        "density": sparse.density,
        "explored": sparse.explored,
        "summary": str(sparse.summary()),
    }


SCENARIOS = {  # how the model is sharded, which method, how it is trained
    "after": {},
    "before": {"order": "before"},
    "adamw": {"optimizer": "adamw", "method": "dst-ee"},
    "keep": {"shard": {"reshard_after_forward": False}},
    "free": {"shard": {"reshard_after_forward": True}},
    "accumulate": {"train": {"parts": 2}, "method": "snfs"},
    "no_sync": {"train": {"parts": 2, "no_sync": True}},
    "clip": {"train": {"clip": True}, "method": "snfs"},
    "hybrid": {"shard": {"hybrid": True}},
    "set": {"method": "set"},
    "sup-tickets": {"method": "sup-tickets", "steps": 44},
    "gmp": {"method": "gmp"},
    "long": {"steps": 200},
}


def run(scenario, rank, ranks, folder):
    setting = SCENARIOS[scenario]
    steps = setting.get("steps", 24)
    model = network()
    plain = ranks == 1
    if setting.get("order") == "before":
        optimizer = optimizer_of(model, setting.get("optimizer", "sgd"))
        sparse = attach(model, optimizer, setting.get("method", "cigl"), steps)
        if not plain:
            shard(model, ranks, **setting.get("shard", {}))
    else:
        if not plain:
            shard(model, ranks, **setting.get("shard", {}))
        optimizer = optimizer_of(model, setting.get("optimizer", "sgd"))
        sparse = attach(model, optimizer, setting.get("method", "cigl"), steps)
    options = dict(setting.get("train", {}))
    if plain:
        options.pop("no_sync", None)
    train(model, optimizer, 1, steps, rank, ranks, **options)
    assert_local_zeros(sparse)
    found = result(model, sparse, optimizer, sparse.finalize(whole=True))
    if not plain:
        check_sharded_result(sparse, found["final"])
    if rank == 0:
        torch.save(found, f"{folder}/{scenario}-{ranks}.pt")


def assert_local_zeros(sparse):
    for layer in sparse.layers:
        outside = ~layer.mask
        for tensor in [layer.weight, *(state.tensor - state.of_zero for state in layer.states())]:
            assert tensor[outside].eq(0).all(), layer.name


def check_sharded_result(sparse, expected):
    final = sparse.finalize()
    assert all(isinstance(p, DTensor) for p in final.parameters())
    for name, value in final.state_dict().items():
        assert torch.equal(whole(value), expected[name]), name
    x, _ = batch(1, (16, 2, 4, 4))
    reference = network()
    reference.load_state_dict(expected)
    with torch.no_grad():
        torch.testing.assert_close(final(x.double()).double(), reference(x.double()), rtol=0.02, atol=0.02)


def new(rank, ranks, steps=24, method="cigl", optimizer="sgd", sharded=None, **options):
    model = network()
    if ranks > 1 if sharded is None else sharded:
        shard(model, ranks, **options)
    built = optimizer_of(model, optimizer)
    return model, built, attach(model, built, method, steps)


def what_a_forward_sees(rank, ranks, folder):
    """In training, M*Z*W as the policy casts it; in eval mode M*W, also in the middle of a step."""
    for after in (True, False):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model, optimizer, sparse = new(rank, ranks, mp_policy=policy, reshard_after_forward=after)
        seen = {}
        for name, layer in (("3.weight", model[3]), ("5.weight", model[5])):
            layer.register_forward_pre_hook(
                lambda m, _, name=name, seen=seen: seen.update({name: m.weight.detach().clone()})
            )
        x, y = batch(1, (16, 2, 4, 4))
        for number in range(1, 6):
            true = {name: whole(value).clone() for name, value in model.state_dict().items()}
            model.eval()(x.double())  # root and parts stay gathered, where reshard_after_forward is False
            model.train()
            loss = F.cross_entropy(model(x.double()).float(), y)
            z = {name: whole(mask) for name, mask in sparse.random_masks.items()}
            assert any((~mask).any() for mask in z.values())
            assert all(torch.equal(seen[n], (true[n] * z[n]).bfloat16()) for n in seen), number
            loss.backward()
            with torch.no_grad():
                model.eval()(x.double())
            assert all(torch.equal(seen[n], true[n].bfloat16()) for n in seen), number
            assert all(torch.equal(whole(value), true[n]) for n, value in model.state_dict().items())
            model.train()
            optimizer.step()
            optimizer.zero_grad()
            assert_local_zeros(sparse)


class Largest(TorchDispatchMode):
    """The most bytes that a tensor had."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor) and not tensor.is_meta:
                self.size = max(self.size, tensor.numel() * tensor.element_size())
        return out


def memory(rank, ranks, folder):
    """No process holds a whole tensor, from attaching to the sharded result, but within FSDP's own forward."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    mesh = init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    method = cigl.method("cigl", second_moment=True)
    largest = Largest()
    with largest:
        sparse = cigl.attach(model, optimizer, method, sparsity=0.9, epochs=10, steps_per_epoch=2, update_every=3)
        sparse.ema(0.9)
    for number in range(1, 21):
        x, y = batch(number, (16, 64))
        F.cross_entropy(model(x), y).backward()
        with largest:
            optimizer.step()
            optimizer.zero_grad()
    with largest:
        sparse.state_dict()
        sparse.finalize()
        sparse.ema(0.9).finalize()
    assert largest.size <= 4 * 64 * 512 // ranks, largest.size
    held = [sparse.layers[0].bits, sparse.layers[0].explored, sparse.collection.mean["0.weight"]]
    held += [sparse.collection.squares["0.weight"], sparse.ema(0.9).values["0.weight"]]
    held += [state.tensor for state in sparse.layers[0].states()]
    assert {tuple(tensor.shape) for tensor in held} == {(512 // ranks, 64)}


def save(rank, ranks, folder):
    """With an average under way and an EMA, in the middle of training."""
    model, optimizer, sparse = new(rank, ranks, optimizer="adamw")
    sparse.ema(0.9)
    train(model, optimizer, 1, 22, rank, ranks)
    weights, state = get_state_dict(model, optimizer)
    held = sparse.state_dict()
    if ranks > 1:
        assert isinstance(held["layers"]["3.weight"]["mask"], DTensor)
        assert isinstance(held["collection"]["mean"]["3.bias"], DTensor)
    dcp.save({"model": weights, "optimizer": state, "sparse": held}, checkpoint_id=f"{folder}/checkpoint-{ranks}")
    finish(model, optimizer, sparse, rank, ranks, folder, f"saved-{ranks}")


def load(rank, ranks, folder, source):
    """What ``save`` has left, by another number of processes."""
    model, optimizer, sparse = new(rank, ranks, optimizer="adamw")
    sparse.ema(0.9)
    weights, state = get_state_dict(model, optimizer)
    held = {"model": weights, "optimizer": state, "sparse": sparse.state_dict(complete=True)}
    dcp.load(held, checkpoint_id=f"{folder}/checkpoint-{source}")
    set_state_dict(model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
    sparse.load_state_dict(held["sparse"])
    assert (sparse.step, sparse.collection.count) == (22, 1)
    finish(model, optimizer, sparse, rank, ranks, folder, f"loaded-{source}-{ranks}")


def finish(model, optimizer, sparse, rank, ranks, folder, name):
    train(model, optimizer, 23, 24, rank, ranks)
    found = result(model, sparse, optimizer, sparse.finalize(whole=True))
    found["ema"] = sparse.ema(0.9).finalize(whole=True).state_dict()
    if rank == 0:
        torch.save(found, f"{folder}/{name}.pt")


def refusals(rank, ranks, folder):
    """Each in one sentence, on every process, with nothing left behind."""
    found = {}

    def refused(name, function):
        try:
            function()
            found[name] = "not refused"
        except cigl.CiglError as error:
            found[name] = str(error)

    def seeds():
        model = network()
        shard(model, ranks)
        optimizer = optimizer_of(model, "sgd")
        cigl.attach(model, optimizer, "rigl", sparsity=0.7, epochs=6, steps_per_epoch=4, seed=rank)

    def columns():
        model = nn.Sequential(nn.Linear(8, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)), shard_placement_fn=lambda p: Shard(p.dim() - 1))
        attach(model, optimizer_of(model, "sgd"), "rigl", 24)

    def partly():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        fully_shard(model[0], mesh=init_device_mesh("cpu", (ranks,)))
        attach(model, optimizer_of(model, "sgd"), "rigl", 24)

    def partly_afterwards():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        attach(model, optimizer_of(model, "sgd"), "rigl", 24)
        fully_shard(model[0], mesh=init_device_mesh("cpu", (ranks,)))
        model(torch.ones(2, 8))

    def saved():
        cigl.save(new(rank, ranks)[0], f"{folder}/never.cigl")

    def tensor_parallel():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
        attach(model, optimizer_of(model, "sgd"), "rigl", 24)

    class Own(torch.optim.SGD):
        pass

    def unknown_optimizer():
        model = network()
        shard(model, ranks)
        attach(model, Own(model.parameters(), lr=0.1), "rigl", 24)

    def kernels():
        model = network().float()
        shard(model, ranks)
        optimizer = optimizer_of(model, "sgd")
        cigl.attach(model, optimizer, "rigl", sparsity=0.7, epochs=6, steps_per_epoch=4, kernels="sparse")

    def another_model():
        state = new(rank, ranks)[2].state_dict()
        model = nn.Sequential(nn.Linear(8, 8))
        shard_all(model, ranks)
        attach(model, optimizer_of(model, "sgd"), "cigl", 24).load_state_dict(state)

    def not_finite():
        """A NaN that only one process's rows have."""
        model, optimizer, sparse = new(rank, ranks, method="rigl")
        train(model, optimizer, 1, 7, rank, ranks)
        x, y = batch(8, (16, 2, 4, 4))
        F.cross_entropy(model(x.double()), y).backward()
        layer = sparse.layers[1]
        if rank == 1:
            layer.gradient[-1, -1] = float("nan")
            sparse._loop.step.dense_gradients._finite[layer] = torch.tensor(False)
        optimizer.step()

    for name, function in list(locals().items()):
        if callable(function) and name not in ("refused", "Own"):
            refused(name, function)
    Path(folder, f"refusals-{rank}.json").write_text(json.dumps(found))


def hybrid_seeds(rank, ranks, folder):
    """One of the copies differs, in one of its parts."""
    model = network()
    shard(model, ranks, hybrid=True)
    try:
        cigl.attach(
            model, optimizer_of(model, "sgd"), "rigl", sparsity=0.7, epochs=6, steps_per_epoch=4, seed=int(rank == 3)
        )
        found = "not refused"
    except cigl.CiglError as error:
        found = str(error)
    Path(folder, f"hybrid_seeds-{rank}.json").write_text(json.dumps(found))


def batch_norm(rank, ranks, folder):
    """Statistics re-estimated from each process's data are those of all, and the result is sharded again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
    shard_all(model, ranks)
    optimizer = optimizer_of(model, "sgd")
    sparse = attach(model, optimizer, "cigl", 24)
    sparse.ema(0.9)
    for number in range(1, 25):
        x, y = batch(number, (16, 8))
        F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
    data = [batch(number, (16, 8))[0].chunk(ranks)[rank] for number in range(1, 4)]
    for final in (sparse.finalize(data), sparse.finalize(data, whole=True), sparse.ema(0.9).finalize(data)):
        mine = torch.stack([final[1].running_mean, final[1].running_var])
        everybody = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(everybody, mine)
        assert all(torch.equal(each, mine) for each in everybody)
    assert all(isinstance(p, DTensor) for p in sparse.finalize(data).parameters())


def shard_all(model, ranks):
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))


CHECKS = {check.__name__: check for check in (what_a_forward_sees, memory, save, refusals, hybrid_seeds, batch_norm)}

if __name__ == "__main__":
    scenario, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if ranks > 1:
        store = dist.FileStore(f"{folder}/store-{scenario}-{ranks}", ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    for one in scenario.split(","):
        if one in SCENARIOS:
            run(one, rank, ranks, folder)
        elif one.startswith("load"):
            load(rank, ranks, folder, one.removeprefix("load-"))
        else:
            CHECKS[one](rank, ranks, folder)
    if ranks > 1:
        dist.destroy_process_group()
        sys.stderr.flush()
        os._exit(0)  # FSDP holds the groups, and torch's gloo threads may abort an interpreter that ends before them
