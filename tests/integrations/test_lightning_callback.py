"""CigLCallback in a real Lightning Trainer."""

import copy
import csv
import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from small import EAGER, Rows, Wrong, density, network, plain_loop, same
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

import cigl
from cigl.integrations.lightning import CigLCallback

OPTIONS = {"sparsity": 0.8, "update_every": 3, "random_mask": 0.2}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*:DeprecationWarning")


class Module(LightningModule):
    def __init__(self, norm=False, lr=0.1):
        super().__init__()
        self.net = network(norm)
        self.lr = lr

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, place):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, place):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Manual(Module):
    """Accumulates two batches and clips, by hand."""

    def __init__(self, norm=False):
        super().__init__(norm)
        self.automatic_optimization = False

    def training_step(self, batch, place):
        x, y = batch
        self.manual_backward(F.cross_entropy(self(x), y) / 2)
        if place % 2:
            optimizer = self.optimizers()
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()


class PartsOnly(Module):
    """Its training step calls a part, and forward is not there."""

    forward = LightningModule.forward

    def training_step(self, batch, place):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, place):
        pass


class Watch(Callback):
    def __init__(self, callback, fail_at=None):
        self.callback, self.fail_at = callback, fail_at
        self.masks, self.sparse = {}, None

    def on_train_batch_end(self, trainer, module, *args):
        self.sparse = self.callback.sparse
        self.masks = self.sparse.masks
        if trainer.global_step == self.fail_at:
            raise RuntimeError("the power is gone")


def loader(batch=8):
    return DataLoader(Rows(), batch_size=batch)


def trainer(folder, callback=None, more=(), fail_at=None, **arguments):
    callback = callback or CigLCallback("cigl", **OPTIONS)
    watch = Watch(callback, fail_at)
    arguments = {
        "max_epochs": 5,
        "logger": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in more),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        **arguments,
    }
    made = Trainer(callbacks=[watch, callback, *more], **arguments)
    made.watch = watch
    return made


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", [Module, Manual])
def test_it_is_the_same_training_as_in_a_plain_loop(tmp_path, kind, norm):
    module = kind(norm)
    if kind is Manual:
        made = trainer(tmp_path, CigLCallback("cigl", steps=32, **OPTIONS), max_epochs=8)
    else:
        made = trainer(tmp_path, max_epochs=8, accumulate_grad_batches=2, gradient_clip_val=0.5)
    made.fit(module, loader(6))
    # 4 steps an epoch are 32 in all, so that there is a snapshot after each.
    options = {**OPTIONS, "epochs": 32, "steps_per_epoch": 1}
    final, sparse = plain_loop(8, 6, accumulate=2, clip=0.5, norm=norm, **options)
    assert same(made.watch.masks, sparse.masks)
    assert same(module.state_dict(), final.state_dict())
    assert 0.15 < density(module) < 0.201


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows())


@pytest.mark.parametrize(
    ("arguments", "data", "steps"),
    [
        ({"max_epochs": 3, "accumulate_grad_batches": 4}, None, 6),  # 6 batches: 4 and 2
        ({"max_epochs": -1, "max_steps": 7}, None, 7),
        ({"max_epochs": 4, "limit_train_batches": 2}, None, 8),
        ({"max_epochs": -1, "max_steps": 9}, DataLoader(Stream(), batch_size=8), 9),
    ],
)
def test_it_announces_the_steps_that_come(tmp_path, arguments, data, steps):
    made = trainer(tmp_path, CigLCallback("rigl", sparsity=0.8, update_every=2), **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cigl.CiglWarning)
        made.fit(Module(), loader() if data is None else data)
    assert made.watch.sparse.table.steps == made.watch.sparse.step == steps


def test_training_without_an_end_is_refused(tmp_path):
    module = Module()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(cigl.CiglError, match=r"CigLCallback\(steps="):
        trainer(tmp_path, max_epochs=-1, max_steps=-1).fit(module, loader())
    assert same(module.state_dict(), before)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_resumed_is_uninterrupted(tmp_path, precision):
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1)  # at the end of each epoch
    whole, module = trainer(tmp_path, more=[keep], precision=precision, max_epochs=10), Module()
    whole.fit(module, loader())
    for step in (12, 54):  # between topology rounds, and after the first snapshots
        again, resumed = trainer(tmp_path, precision=precision, max_epochs=10), Module()
        with warnings.catch_warnings():
            warnings.simplefilter("error", cigl.CiglWarning)
            again.fit(resumed, loader(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert same(again.watch.masks, whole.watch.masks)
        assert same(resumed.state_dict(), module.state_dict())


def test_interrupted_and_resumed_with_the_same_module(tmp_path):
    rows = Subset(Rows(), [*range(8)] * 6)  # Lightning reads an interrupted epoch from its beginning: equal batches
    whole, module = trainer(tmp_path), Module()
    whole.fit(module, DataLoader(rows, batch_size=8))
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=9, save_top_k=-1)
    made, again = trainer(tmp_path, more=[keep], fail_at=20), Module()
    with pytest.raises(RuntimeError, match="the power is gone"):
        made.fit(again, DataLoader(rows, batch_size=8))
    made = trainer(tmp_path, made.watch.callback)  # which is attached still
    made.fit(again, DataLoader(rows, batch_size=8), ckpt_path=tmp_path / "step=18.ckpt")
    assert made.watch.sparse.step == 30
    assert same(again.state_dict(), module.state_dict())


def test_a_checkpoint_that_was_tested_is_not_resumed(tmp_path):
    made, module = trainer(tmp_path, more=[ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=7)]), Module()
    made.fit(module, loader())
    made.validate(module, loader(), ckpt_path=tmp_path / "step=28.ckpt")
    assert 0.15 < density(module) < 0.201
    made.fit_loop.max_epochs = 10
    with pytest.warns(cigl.CiglWarning, match="zero already"):
        made.fit(module, loader())
    assert made.watch.sparse.step == 30  # from the beginning


@pytest.mark.parametrize("how", ["tuner", "callback"])
def test_finding_a_learning_rate_first(tmp_path, how):
    module = Module()
    if how == "tuner":
        made = trainer(tmp_path)
        Tuner(made).lr_find(module, loader(), num_training=10)
        assert made.watch.callback.sparse is None
    else:
        made = trainer(tmp_path, more=[LearningRateFinder(num_training_steps=10)])
    made.fit(module, loader())
    assert made.watch.sparse.step == made.watch.sparse.table.steps == 30
    assert 0.15 < density(module) < 0.201


class MidwayFinder(LearningRateFinder):
    """Lightning's example for fine-tuning: looks for a new learning rate in the middle of training."""

    def on_fit_start(self, *args):
        pass

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2:
            self.lr_find(trainer, module)


def test_finding_a_learning_rate_in_the_middle(tmp_path):
    module = Module()
    made = trainer(tmp_path, more=[MidwayFinder(num_training_steps=5, update_attr=False)])
    made.fit(module, loader())
    assert made.watch.sparse.step == 30
    plain, reference = trainer(tmp_path), Module()
    plain.fit(reference, loader())
    assert same(module.state_dict(), reference.state_dict())


@pytest.mark.parametrize("average", [EMAWeightAveraging, WeightAveraging, lambda: StochasticWeightAveraging(0.01)])
def test_other_averages_are_refused(tmp_path, average):
    module = Module()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(cigl.CiglError, match="Averaging averages weights while the masks change"):
        trainer(tmp_path, more=[average()]).fit(module, loader())
    assert same(module.state_dict(), before)


def test_a_second_optimizer_is_refused(tmp_path):
    class Two(Manual):
        def configure_optimizers(self):
            return [torch.optim.SGD([p], lr=0.1) for p in (self.net[0].weight, self.net[2].weight)]

    module = Two()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(cigl.CiglError, match="follows one optimizer, and this module has 2"):
        trainer(tmp_path).fit(module, loader())
    assert same(module.state_dict(), before)


def test_parts_that_are_called_alone(tmp_path):
    module = PartsOnly()
    made = trainer(tmp_path)
    made.fit(module, loader())
    assert 0.15 < density(module) < 0.201
    assert made.watch.sparse.step == 30


def test_batch_norm_without_a_forward(tmp_path):
    module = PartsOnly(norm=True)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(cigl.CiglError, match="say how a batch is run"):
        trainer(tmp_path).fit(module, loader())
    assert same(module.state_dict(), before)
    callback = CigLCallback("cigl", forward=lambda module, batch: module.net(batch[0]), **OPTIONS)
    trainer(tmp_path, callback).fit(module, loader())
    (norm,) = [each for each in module.modules() if isinstance(each, nn.BatchNorm1d)]
    with torch.no_grad():  # what batch norm sees in the end is what its statistics say
        seen = torch.stack([module.net[0](x).mean(0) for x, _ in loader()]).mean(0)
    torch.testing.assert_close(norm.running_mean, seen)
    trainer(tmp_path, CigLCallback("rigl", sparsity=0.8, update_every=3)).fit(PartsOnly(norm=True), loader())


def test_it_logs_to_the_trainers_loggers(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    trainer(tmp_path, logger=logger, log_every_n_steps=6).fit(Module(), loader())
    rows = list(csv.DictReader((Path(tmp_path) / "metrics.csv").open()))
    numbers = [{name: float(value) for name, value in row.items()} for row in rows if row["cigl/density"]]
    assert [row["step"] for row in numbers] == [6, 12, 18, 24, 30]
    assert all(row["cigl/density"] == pytest.approx(0.2, abs=0.001) for row in numbers)
    assert numbers[0]["cigl/explored"] < numbers[-1]["cigl/explored"]
    assert numbers[0]["cigl/drop_fraction"] == pytest.approx(0.3 / 2 * (1 + math.cos(math.pi * 6 / 22)))
    assert numbers[-1]["cigl/drop_fraction"] == 0


def test_the_final_module_is_plain(tmp_path):
    module = Module()
    made = trainer(tmp_path)
    made.fit(module, loader(), loader())
    assert not module._forward_pre_hooks
    assert made.watch.callback.sparse is None
    rows = Rows()
    loss = F.cross_entropy(module.eval()(rows.x), rows.y).item()
    assert made.validate(module, loader(), verbose=False)[0]["val_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_what_is_held_out_steers_the_random_mask_and_is_resumed(tmp_path, several):
    held_out = DataLoader(Wrong(), batch_size=32)
    held_out = [held_out, held_out] if several else held_out

    class Silent(Module):
        def validation_step(self, batch, place, dataloader_idx=0):
            pass

    def fitted(more=(), path=None):
        module, made = Silent(), trainer(tmp_path, CigLCallback(EAGER, sparsity=0.5), more, num_sanity_val_steps=0)
        made.fit(module, loader(), held_out, ckpt_path=path)
        return module, made.watch.sparse.controller

    keep = ModelCheckpoint(tmp_path / "kept", filename="{epoch}", save_top_k=-1)
    whole, controller = fitted([keep])
    assert len(controller.history) == 4  # the fifth epoch was the last
    assert controller.strength > 0
    again, resumed = fitted(path=tmp_path / "kept" / "epoch=2.ckpt")
    assert resumed == controller
    assert same(again.state_dict(), whole.state_dict())


def test_a_module_without_forward_is_not_asked(tmp_path):
    made = trainer(tmp_path, CigLCallback(EAGER, sparsity=0.5), num_sanity_val_steps=0)
    with pytest.warns(cigl.CiglWarning, match="has seen no held-out examples"):
        made.fit(PartsOnly(), loader(), loader())
