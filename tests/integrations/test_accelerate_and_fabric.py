"""cigl.attach in a loop of one's own around Accelerate and around Lightning's Fabric."""

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from small import Net, Rows, density, plain_loop, same
from torch.utils.data import DataLoader

import cigl

OPTIONS = {"sparsity": 0.8, "update_every": 3, "random_mask": 0.2, "epochs": 32, "steps_per_epoch": 1}


@pytest.fixture(autouse=True)
def _a_new_accelerator():
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def parts():
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), DataLoader(Rows(), batch_size=6)


def accelerated(order, precision="no", folder=None, save_at=None, resume=False):
    """8 passes of 4 optimizer steps; returns the final model and the sparsifier."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    model, optimizer, loader = parts()
    if order == "before":
        sparse = cigl.attach(model, optimizer, **OPTIONS)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if order == "after":
        sparse = cigl.attach(prepared, optimizer, **OPTIONS)
    accelerator.register_for_checkpointing(sparse)
    if resume:
        accelerator.load_state(folder)
    for number in range(sparse.step // 4, 8):
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(F.cross_entropy(prepared(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        if number == save_at:
            accelerator.save_state(folder)
    final = accelerator.unwrap_model(sparse.finalize(), keep_fp32_wrapper=False)
    accelerator.free_memory()
    return final, sparse


def test_attached_before_prepare():
    final, sparse = accelerated("before")
    expected, reference = plain_loop(8, 6, accumulate=2, clip=0.5, **OPTIONS)
    assert same(sparse.masks, reference.masks)
    assert same(final.state_dict(), expected.state_dict())


def test_attached_after_prepare():
    final, sparse = accelerated("after")
    expected, reference = plain_loop(8, 6, accumulate=2, clip=0.5, **OPTIONS)
    assert same(sparse.masks, reference.masks)
    assert same(final.state_dict(), expected.state_dict())


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_resumes(tmp_path, precision):
    final, sparse = accelerated("before", precision, tmp_path / "state", save_at=3)
    again, resumed = accelerated("before", precision, tmp_path / "state", resume=True)
    assert same(resumed.masks, sparse.masks)
    assert same(again.state_dict(), final.state_dict())
    assert 0.15 < density(final) < 0.201


def with_fabric(file, save_at=None, resume=False):
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer, loader = parts()
    sparse = cigl.attach(model, optimizer, **OPTIONS)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    state = {"model": model, "optimizer": optimizer, "sparse": sparse}
    if resume:
        fabric.load(file, state)
    for number in range(sparse.step // 4, 8):
        for place, (x, y) in enumerate(loader):
            fabric.backward(F.cross_entropy(model(x), y) / 2)
            if place % 2:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
        if number == save_at:
            fabric.save(file, state)
    return sparse.finalize(), sparse


def test_fabric_resumes(tmp_path):
    file = tmp_path / "state.ckpt"
    expected, reference = plain_loop(8, 6, accumulate=2, clip=0.5, **OPTIONS)
    for final, sparse in (with_fabric(file, save_at=3), with_fabric(file, resume=True)):
        assert same(sparse.masks, reference.masks)
        assert same(final.state_dict(), expected.state_dict())
