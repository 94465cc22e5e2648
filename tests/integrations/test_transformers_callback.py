"""CigLCallback in a real transformers.Trainer."""

import copy
import math
import pickle
import shutil
import warnings

import pytest
import torch
import torch.nn.functional as F
from small import EAGER, ROWS, Rows, Wrong, density, network, plain_loop, same
from torch import nn
from torch.utils.data import IterableDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import cigl
from cigl.integrations.transformers import FILE, CigLCallback

OPTIONS = {"sparsity": 0.8, "update_every": 3, "random_mask": 0.2}


class Classifier(nn.Module):
    """As ``Trainer`` wants it: the loss comes out of forward."""

    def __init__(self, norm=False):
        super().__init__()
        self.net = network(norm)

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Watch(TrainerCallback):
    """What happens in the middle of training; may also fail there."""

    def __init__(self, callback, fail_at=None):
        self.callback, self.fail_at = callback, fail_at
        self.logs, self.masks, self.steps = [], {}, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.sparse = self.callback.sparse
        self.masks, self.steps = self.sparse.masks, self.sparse.step
        if state.global_step == self.fail_at:
            raise KeyboardInterrupt

    def on_log(self, args, state, control, logs, **kwargs):
        self.logs.append(dict(logs))


def trainer(folder, model=None, callback=None, fail_at=None, data=None, kind=Trainer, optimizer=None, **arguments):
    callback = callback or CigLCallback("cigl", **OPTIONS)
    arguments = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 5,
        "save_strategy": "no",
        "logging_steps": 6,
        "learning_rate": 0.05,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **arguments,
    }
    watch = Watch(callback, fail_at)
    made = kind(
        model=model or Classifier(),
        args=TrainingArguments(str(folder), **arguments),
        train_dataset=Rows(as_dict=True) if data is None else data,
        eval_dataset=Rows(as_dict=True),
        callbacks=[watch, callback],
        optimizers=(optimizer, None),
    )
    made.watch = watch
    return made


@pytest.mark.parametrize("norm", [False, True])
def test_it_is_the_same_training_as_in_a_plain_loop(tmp_path, norm):
    model = Classifier(norm)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = trainer(
        tmp_path,
        model,
        kind=InOrder,
        optimizer=sgd,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        num_train_epochs=8,
        lr_scheduler_type="constant",
        max_grad_norm=0.5,
    )
    made.train()
    # 4 steps an epoch are 32 in all, so that there is a snapshot after each.
    options = {**OPTIONS, "epochs": 32, "steps_per_epoch": 1}
    final, sparse = plain_loop(8, 6, accumulate=2, clip=0.5, norm=norm, **options)
    assert same(made.watch.masks, sparse.masks)
    assert same(made.model.state_dict(), final.state_dict())
    assert 0.15 < density(made.model) < 0.201


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows(as_dict=True))


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"num_train_epochs": 3, "gradient_accumulation_steps": 4}, 6),  # 6 batches: 4 and 2
        ({"max_steps": 7}, 7),
        ({"num_train_epochs": 2.5}, 15),
        ({"max_steps": 9, "data": Stream()}, 9),
    ],
)
def test_it_announces_the_steps_that_come(tmp_path, arguments, steps):
    made = trainer(tmp_path, callback=CigLCallback("rigl", sparsity=0.8, update_every=2), **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cigl.CiglWarning)
        made.train()
    assert made.watch.sparse.table.steps == made.watch.steps == steps


@pytest.mark.parametrize("bf16", [False, True])
def test_resumed_is_uninterrupted(tmp_path, bf16):
    whole = trainer(tmp_path / "whole", save_steps=7, save_strategy="steps", bf16=bf16)
    whole.train()
    # 7 is in the middle of an epoch and of the topology rounds, 28 after the first snapshots.
    for step in (7, 28):
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", tmp_path / f"moved-{step}")
        again = trainer(tmp_path / "again", bf16=bf16)
        with warnings.catch_warnings():
            warnings.simplefilter("error", cigl.CiglWarning)
            again.train(resume_from_checkpoint=str(tmp_path / f"moved-{step}"))
        assert same(again.watch.masks, whole.watch.masks)
        assert same(again.model.state_dict(), whole.model.state_dict())


def test_interrupted_and_resumed_by_the_same_trainer(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.train()
    made = trainer(tmp_path / "made", fail_at=20, save_steps=9, save_strategy="steps")
    with pytest.raises(KeyboardInterrupt):
        made.train()
    made.watch.fail_at = None
    made.train(resume_from_checkpoint=True)
    assert same(made.model.state_dict(), whole.model.state_dict())


def test_a_checkpoint_without_masks_is_refused(tmp_path):
    made = trainer(tmp_path, save_steps=10, save_strategy="steps")
    made.train()
    checkpoint = tmp_path / "checkpoint-10"
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    (checkpoint / FILE).unlink()
    model = Classifier()
    with pytest.raises(cigl.CiglError, match="saved without CigLCallback"):
        trainer(tmp_path, model).train(resume_from_checkpoint=str(checkpoint))
    assert not model._forward_pre_hooks
    assert state["state"]


def test_a_checkpoint_of_other_options_is_refused(tmp_path):
    trainer(tmp_path, save_steps=10, save_strategy="steps").train()
    other = trainer(tmp_path, callback=CigLCallback("cigl", **{**OPTIONS, "sparsity": 0.7}))
    with pytest.raises(cigl.CiglError, match="another run"):
        other.train(resume_from_checkpoint=True)
    assert not other.model._forward_pre_hooks


def test_the_best_model_is_the_one_that_was_evaluated(tmp_path):
    made = trainer(
        tmp_path,
        learning_rate=2.0,  # diverges late: the best checkpoint is an early one
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="steps",
        save_steps=5,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=False,
    )
    with pytest.warns(cigl.CiglWarning, match="nothing is averaged"):
        made.train()
    assert made.state.best_global_step < made.state.max_steps
    assert made.evaluate()["eval_loss"] == pytest.approx(made.state.best_metric, rel=1e-5)
    assert 0.15 < density(made.model) < 0.201
    assert not made.model._forward_pre_hooks


def test_gradual_pruning_has_no_best_checkpoint(tmp_path):
    made = trainer(
        tmp_path,
        callback=CigLCallback("gmp", sparsity=0.8, update_every=2),
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    )
    before = copy.deepcopy(made.model.state_dict())
    with pytest.raises(cigl.CiglError, match="load_best_model_at_end=False"):
        made.train()
    assert same(made.model.state_dict(), before)


def test_mixed_precision_leaves_no_wrapper(tmp_path):
    made = trainer(tmp_path, bf16=True, callback=CigLCallback("rigl", sparsity=0.8, update_every=3))
    seen = []
    made.model.net.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    made.train()
    assert not {"forward", "_original_forward"} & vars(made.model).keys()
    made.model.net._forward_hooks.clear()
    made.model.net.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    with pytest.warns(cigl.CiglWarning, match="is zero already"):
        made.train()  # once more, again in bf16
    assert set(seen) == {torch.bfloat16}
    made.model.net._forward_hooks.clear()
    pickle.dumps(made.model)
    assert copy.deepcopy(made.model)(torch.zeros(1, 10), torch.tensor([0]))["loss"].dtype == torch.float32


def test_it_logs_to_whatever_reports(tmp_path):
    made = trainer(tmp_path)
    made.train()
    for records in (made.watch.logs, made.state.log_history):  # a callback that came before, and the history
        numbers = [record for record in records if "loss" in record]
        assert len(numbers) == 5
        assert all(record["cigl/density"] == pytest.approx(0.2, abs=0.001) for record in numbers)
        assert numbers[0]["cigl/explored"] < numbers[-1]["cigl/explored"]
        assert numbers[0]["cigl/drop_fraction"] == pytest.approx(0.3 / 2 * (1 + math.cos(math.pi * 6 / 22)))
        assert numbers[-1]["cigl/drop_fraction"] == 0


def test_training_that_stops_early_keeps_its_weights(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 5

    made = trainer(tmp_path)
    made.add_callback(Stop())
    with pytest.warns(cigl.CiglWarning, match="finalizing early"):
        made.train()
    assert 0.15 < density(made.model) < 0.201


def test_a_bert_with_gradient_checkpointing(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
        max_position_embeddings=8,
    )
    ids = torch.randint(0, 20, (ROWS, 6))
    data = [{"input_ids": row, "labels": row[0] % 3} for row in ids]
    model = BertForSequenceClassification(config)
    callback = CigLCallback("cigl", layers={"classifier": False}, **OPTIONS)
    made = trainer(tmp_path, model, callback, data=data, gradient_checkpointing=True, eval_strategy="no")
    made.train()
    made.save_model(str(tmp_path / "final"))
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "final")
    weights = [p for name, p in loaded.named_parameters() if p.dim() == 2 and "embeddings" not in name]
    inside = [p for p in weights if p.shape[0] != 3]
    active = sum(int((p != 0).sum()) for p in inside) / sum(p.numel() for p in inside)
    assert 0.15 < active < 0.201


def test_bad_options_are_refused_at_once():
    with pytest.raises(cigl.CiglError, match="did you mean 'sparsity'"):
        CigLCallback("rigl", sparsty=0.9)
    with pytest.raises(cigl.CiglError, match="the trainer knows"):
        CigLCallback("rigl", sparsity=0.9, epochs=3)


def test_outside_of_a_trainer_it_says_what_to_do():
    with pytest.raises(cigl.CiglError, match=r"call cigl\.attach"):
        CigLCallback("rigl", sparsity=0.9).on_train_begin(None, None, None)


def test_what_is_held_out_steers_the_random_mask_and_is_resumed(tmp_path):
    def observing(folder, **arguments):
        made = trainer(folder, callback=CigLCallback(EAGER, sparsity=0.5), **arguments)
        made.eval_dataset = Wrong(as_dict=True)
        return made

    whole = observing(tmp_path / "whole", save_steps=6, save_strategy="steps", logging_steps=1)
    whole.train()
    controller = whole.watch.sparse.controller
    assert len(controller.history) == 4  # the fifth epoch was the last
    assert controller.strength > 0
    assert whole.watch.logs[-2]["cigl/mask_rate"] > 0
    assert {"cigl/strength", "cigl/gap"} <= whole.watch.logs[-2].keys()
    shutil.copytree(tmp_path / "whole" / "checkpoint-18", tmp_path / "moved")  # at the end of an epoch
    again = observing(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "moved"))
    assert again.watch.sparse.controller == controller
    assert same(again.model.state_dict(), whole.model.state_dict())
