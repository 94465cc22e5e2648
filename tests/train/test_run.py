"""Whole runs on the embedded dataset: repeatable, resumable after any kill, honest about errors."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import cigl
from cigl import CiglError, CiglWarning
from cigl.common import tensors
from cigl.train.config import Config
from cigl.train.evaluate import evaluate_run
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import Execution, complete, resume, train
from cigl.train.signals import Stopped
from cigl.train.trainer import Splits, Trainer

SMALL = {"train_size": 640, "epochs": 5, "batch_size": 64, "update_every": 5, "average_from": 0.6, "update_until": 0.5}


@pytest.fixture(autouse=True)
def _no_warnings_about_few_snapshots():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*snapshots will be averaged")
        yield


def small(**changes):
    keys = SMALL | changes
    if cigl.method(keys.get("method", "cigl")).average_from is None:
        keys.pop("average_from")
    if cigl.method(keys.get("method", "cigl")).update_every is None:
        keys.pop("update_every"), keys.pop("update_until")
    return Config(**keys)


def outcome(folder):
    """What must be the same to the bit: final weights, report and metrics without times."""
    folder = RunFolder(folder)
    metrics = [{k: v for k, v in row.items() if k != "seconds"} for row in folder.read_metrics()]
    result = {k: v for k, v in folder.read_json("result.json").items() if k != "seconds"}
    model = tensors.load(folder.path / "model.safetensors")
    return metrics, result, {name: value.numpy().tobytes() for name, value in model.items()}


def test_a_run_leaves_everything_behind(tmp_path):
    rows = []
    result = train(small(), tmp_path / "a", progress=lambda trainer, row: rows.append(row))
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"config.yaml", "metrics.jsonl", "model.safetensors", "report.json", "result.json", "versions.json"} <= files
    assert len([row for row in rows if row]) == 5
    assert len(rows) == 5 * 10 + 5
    assert result["density"] == pytest.approx(0.2, abs=1e-3)
    assert result["test"]["report"]["accuracy"]["value"] > 0.15  # chance is 0.1
    assert result["config"]["epochs"] == 5
    metrics = RunFolder(tmp_path / "a").read_metrics()
    assert [row["epoch"] for row in metrics] == [1, 2, 3, 4, 5]
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_a_result_counts_active_positions_and_non_zero_weights(tmp_path, capsys):
    """Of few snapshots the average has zeros where Z was 0 in each: M's count is the promise, the rest is shown."""
    from cigl.train.show import show_result

    result = train(small(random_mask=0.5), tmp_path / "a")
    model = tensors.load(tmp_path / "a" / "model.safetensors")
    weights = {name: value for name, value in model.items() if value.ndim == 2}
    assert result["active"] == round(0.2 * sum(value.numel() for value in weights.values()))
    assert result["nonzeros"] == sum(int(value.count_nonzero()) for value in weights.values()) < result["active"]
    show_result(tmp_path / "a", result)
    sentence = f"{result['nonzeros']:,} non-zero weights at {result['active']:,} active positions"
    assert sentence in capsys.readouterr().out
    show_result(tmp_path / "a", result | {"nonzeros": result["active"]})
    earlier = {name: value for name, value in result.items() if name not in ("active", "nonzeros")}
    show_result(tmp_path / "a", earlier)
    assert "non-zero" not in capsys.readouterr().out


def test_the_saved_configuration_reproduces_the_run(tmp_path):
    train(small(seed=3, mixup=0.2, label_smoothing=0.1), tmp_path / "a")
    again = RunFolder(tmp_path / "a").read_config()
    train(again, tmp_path / "b")
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("method", list(cigl.methods()))
def test_every_method_runs(method, tmp_path):
    sparsity = 0.0 if method == "dense" else 0.8
    result = train(small(method=method, sparsity=sparsity, epochs=8, train_size=320), tmp_path / "a")
    assert result["test"]["report"]["nll"]["value"] < 5
    assert result["density"] == pytest.approx(1 - sparsity, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "lr": 0.003, "schedule": "cosine", "warmup_epochs": 1.0},
        {"optimizer": "adam", "lr": 0.003, "bf16": True, "clip": 1.0},
        {"model": "convnet", "dataset": "mnist1d"},
        {"average_of": "p*W"},
        {"method": "rigl-wdp", "final_weights": "p*W"},
    ],
)
def test_options_reach_the_run(changes, tmp_path):
    if changes.get("model") == "convnet":
        with pytest.raises(CiglError, match="convnet"):  # it wants images
            train(small(**changes), tmp_path / "a")
        return
    assert train(small(**changes), tmp_path / "a")["test"]["report"]["accuracy"]["value"] > 0.1


def test_resume_of_a_finished_run_only_reads_it(tmp_path):
    result = train(small(), tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.name != "lock"}
    assert resume(tmp_path / "a") == result
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.name != "lock"}


def test_a_folder_with_a_run_is_not_trained_over(tmp_path):
    train(small(epochs=2), tmp_path / "a")
    with pytest.raises(CiglError, match="already holds a run: resume it with --resume"):
        train(small(epochs=2), tmp_path / "a")


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 7, 10, 23, 49])
def test_interrupted_anywhere_and_resumed_is_bit_identical(stop, tmp_path):
    train(small(), tmp_path / "whole")

    def bomb(trainer, row):
        if row is None and trainer.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="SIGTERM") as stopped:
        train(small(), tmp_path / "part", progress=bomb)
    assert stopped.value.exit_code == 143
    resume(tmp_path / "part")
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "part")


def test_a_run_of_a_study_saves_itself_when_it_is_stopped_between_epochs(tmp_path):
    """It writes no checkpoint per epoch, so the request itself must."""

    def bomb(trainer, row):
        if row is not None and row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        complete(small(), tmp_path / "part", Execution(bomb))
    assert RunFolder(tmp_path / "part").load_checkpoint()["epoch"] == 2
    complete(small(), tmp_path / "part")
    train(small(), tmp_path / "whole")
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "part")


def test_a_signal_at_the_end_of_the_last_epoch_is_not_lost(tmp_path):
    def bomb(trainer, row):
        if row is not None and row["epoch"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    for temperature in ("none", "pilot"):
        with pytest.raises(Stopped):
            train(small(temperature=temperature), tmp_path / temperature, progress=bomb)
        assert not (tmp_path / temperature / "result.json").exists()
    whole = train(small(), tmp_path / "whole")
    resumed = resume(tmp_path / "none")  # after its last epoch: only finishing is left
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}
    assert resumed["inference_flops"] is not None


def test_seconds_count_what_came_before_a_resume_within_an_epoch(tmp_path, monkeypatch):
    """A clock that a step takes a second of: an epoch has 10 steps, the run 50."""
    now = [0.0]
    monkeypatch.setattr("cigl.train.run.time.monotonic", lambda: now[0])

    def tick(trainer, row):
        now[0] += row is None

    def bomb(trainer, row):
        tick(trainer, row)
        if row is None and trainer.step == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = train(small(), tmp_path / "whole", progress=tick)
    with pytest.raises(Stopped):
        train(small(), tmp_path / "part", progress=bomb)
    now[0] += 1000  # the time between
    part = resume(tmp_path / "part", progress=tick)
    assert part["seconds"] == pytest.approx(whole["seconds"], abs=1.5)


def test_a_checkpoint_of_version_0_1_0_has_no_seconds(tmp_path):
    with pytest.raises(Stop):
        train(small(), tmp_path / "part", progress=_stop_after_epoch(2))
    newest = max((tmp_path / "part" / "checkpoints").iterdir(), key=lambda path: int(path.stem))
    state = tensors.load(newest)
    del state["seconds"]
    tensors.save(newest, state)
    train(small(), tmp_path / "whole")
    resume(tmp_path / "part")
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "part")


def test_an_option_of_a_method_reaches_it(tmp_path):
    trainer = Trainer(config := small(method="dst-ee", options={"c": 0.5}), Splits.of(config))
    assert trainer.sparse.method.c == 0.5
    for options, message in (
        ({"cc": 1}, "unknown option of method 'dst-ee' 'cc'"),
        ({"c": "much"}, "c .*is 'much': give a number"),
        ({"memory": 3}, "option memory of method 'dst-ee' can't be set"),
    ):
        with pytest.raises(CiglError, match=message):
            train(small(method="dst-ee", options=options), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_edited_configuration_is_not_mixed_into_a_run(tmp_path):
    with pytest.raises(Stop):
        train(small(), tmp_path / "a", progress=_stop_after_epoch(2))
    config = tmp_path / "a" / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.1\n", "lr: 0.7\n"))
    with pytest.raises(CiglError, match=r"config\.yaml is not the one that the checkpoint was made with"):
        resume(tmp_path / "a")


def _stop_after_epoch(epoch):
    def bomb(trainer, row):
        if row is not None and row["epoch"] == epoch:
            raise Stop

    return bomb


def test_the_learning_rate_of_an_epoch_is_the_one_it_was_trained_with(tmp_path):
    train(small(milestones=[0.4], gamma=0.1), tmp_path / "a")
    assert [row["lr"] for row in RunFolder(tmp_path / "a").read_metrics()] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 0.01]
    )


def test_evaluate_repairs_and_removes_nothing(tmp_path):
    train(small(method="rigl-mcdp"), tmp_path / "a")
    newest = tmp_path / "a" / "checkpoints" / "50.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(CiglError, match=r"50\.safetensors is damaged"):
        evaluate_run(tmp_path / "a")
    assert newest.exists()
    train(small(), tmp_path / "b")
    for path in (tmp_path / "b" / "checkpoints").iterdir():
        path.unlink()
    assert evaluate_run(tmp_path / "b").n == 10_000  # the finished model is enough


def test_an_unusable_device_is_one_line(tmp_path):
    with pytest.raises(CiglError, match="device 'foo' can't be used here"):
        train(small(device="foo"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def start(folder, *more, **options):
    arguments = ["train", "--out", str(folder), "--threads", "1", "--quiet", "--checkpoint-minutes", "0.0005"]
    for name, value in (SMALL | {"epochs": 30, "train_size": 2000} | options).items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen([sys.executable, "-m", "cigl.cli", *arguments, *more], stderr=subprocess.PIPE, text=True)


def again(folder):
    arguments = ["train", "--resume", str(folder), "--threads", "1", "--quiet", "--checkpoint-minutes", "0.0005"]
    return subprocess.Popen([sys.executable, "-m", "cigl.cli", *arguments], stderr=subprocess.PIPE, text=True)


def started(process, folder):
    while not list(Path(folder).glob("checkpoints/*")) and process.poll() is None:
        time.sleep(0.01)


def newest(folder):
    return max((int(each.stem) for each in folder.glob("checkpoints/[0-9]*.safetensors")), default=0)


def test_kill_9_is_bit_identical(tmp_path):
    """A real process, killed three times: twice after a new checkpoint, once while one is being written."""
    whole, folder = start(tmp_path / "whole"), tmp_path / "killed"
    assert whole.wait(120) == 0, whole.stderr.read()
    process = start(folder)
    for wanted in ("new", "half", "new"):
        before = newest(folder)
        while process.poll() is None:
            if newest(folder) > before and (wanted == "new" or list(folder.glob("checkpoints/.*.tmp*"))):
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        process = again(folder)
    assert process.wait(120) == 0, process.stderr.read()
    assert outcome(tmp_path / "whole") == outcome(folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_end_with_their_code(number, code, tmp_path):
    process = start(tmp_path / "a", epochs=20_000)
    started(process, tmp_path / "a")
    process.send_signal(number)
    assert process.wait(60) == code
    assert "what was trained is saved, resume it with: cigl train --resume" in process.stderr.read()
    assert RunFolder(tmp_path / "a").load_checkpoint() is not None


def test_a_damaged_newest_checkpoint_costs_only_a_repeat(tmp_path):
    train(small(), tmp_path / "whole")

    def bomb(trainer, row):
        if row is not None and row["epoch"] == 3:
            raise Stop

    with pytest.raises(Stop):
        train(small(), tmp_path / "part", progress=bomb)
    newest = tmp_path / "part" / "checkpoints" / "30.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(CiglWarning, match="checkpoint before it is used"):
        resume(tmp_path / "part")
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "part")


def test_a_nan_loss_is_one_clear_line_and_the_last_checkpoint_is_good(tmp_path):
    with pytest.raises(CiglError, match=r"(loss is (nan|inf) in step|NaN or Inf)"):
        train(small(lr=1e6, clip=None), tmp_path / "a")
    state = RunFolder(tmp_path / "a").load_checkpoint()
    assert state is None or all(value.isfinite().all() for value in state["model"].values())


def test_a_last_step_that_diverges_is_one_clear_line(tmp_path):
    def bomb(trainer, row):
        if row is not None and row["epoch"] == trainer.config.epochs:
            next(trainer.model.parameters()).data.fill_(math.nan)

    with pytest.raises(CiglError, match="the weights are not finite after the last step: lower lr"):
        train(small(), tmp_path / "a", progress=bomb)
    assert not RunFolder(tmp_path / "a").is_finished


def test_a_full_disk_is_one_clear_line_and_the_last_checkpoint_is_good(tmp_path, monkeypatch):
    def bomb(trainer, row):
        if row is not None and row["epoch"] == 2:

            def full(*_):
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(CiglError, match=r"can't be written.*No space left on device"):
        train(small(), tmp_path / "a", progress=bomb)
    monkeypatch.undo()
    assert RunFolder(tmp_path / "a").load_checkpoint()["epoch"] == 2


def test_bad_data_and_models_leave_no_run_behind(tmp_path):
    for changes, message in (
        ({"dataset": "mnist2d"}, "mnist2d"),
        ({"model": "mlpp"}, "mlpp"),
        ({"train_size": 10**6}, "train_size is 1000000, but mnist1d has 4000"),
        ({"batch_size": 10_000}, "make no batch of 10000"),
        ({"method": "cigll"}, "did you mean 'cigl'"),
    ):
        keys = SMALL | changes
        with pytest.raises(CiglError, match=message):
            train(Config(**keys), tmp_path / "a")
        assert not (tmp_path / "a" / "config.yaml").exists()


def test_the_held_out_part_is_never_trained_on():
    splits = Splits.of(small(validation=0.2))
    assert len(splits.train) + len(splits.validation) == 640
    held = {tuple(row) for row in next(iter(splits.validation.batches(10**4)))[0].flatten(1).tolist()}
    used = {tuple(row) for row in next(iter(splits.train.batches(10**4)))[0].flatten(1).tolist()}
    assert not held & used


def test_the_held_out_part_is_drawn_anew_for_each_seed_on_request():
    def held_out(**changes):
        return Splits.of(Config(validation=0.2, **changes)).validation._index.tolist()

    assert held_out() == held_out(seed=1) == held_out(redraw=True)  # seed 0
    assert held_out(redraw=True, seed=1) == held_out(redraw=True, seed=1, lr=1.0) != held_out()


def test_holdout_temperature(tmp_path):
    result = train(small(method="rigl", epochs=20, temperature="holdout"), tmp_path / "a")
    assert result["temperature"] > 1  # RigL is over-confident
    test = result["test"]
    assert test["report-temperature"]["nll"]["value"] < test["report"]["nll"]["value"]
    assert test["report-temperature"]["accuracy"]["value"] == test["report"]["accuracy"]["value"]
    assert "validation_accuracy" in RunFolder(tmp_path / "a").read_metrics()[0]


def test_a_run_that_differs_in_its_temperature_takes_the_training_of_the_other(tmp_path):
    """Bit by bit what it would have trained itself, whichever of the two came first."""

    def done(config, runs):
        steps = []
        complete(config, runs / config.digest(), Execution(lambda trainer, row: steps.append(trainer.config)))
        return steps.count(config)

    held, pilot = (small(validation=0.1, temperature=kind) for kind in ("holdout", "pilot"))
    assert [done(held, tmp_path / "a"), done(pilot, tmp_path / "a")] == [5 * 9 + 5, 0]
    assert [done(pilot, tmp_path / "b"), done(held, tmp_path / "b")] == [5 * 9 + 5, 0]
    for config in (held, pilot):
        assert outcome(tmp_path / "a" / config.digest()) == outcome(tmp_path / "b" / config.digest())
    again = RunFolder(tmp_path / "a" / pilot.digest())
    assert again.read_json("result.json")["seconds"] > 0
    assert evaluate_run(again.path, masks=3).accuracy == evaluate_run(tmp_path / "b" / pilot.digest(), masks=3).accuracy


def test_other_data_another_version_or_no_checkpoint_is_trained_anew(tmp_path):
    def is_trained(config):
        steps = []
        complete(config, tmp_path / config.digest(), Execution(lambda trainer, row: steps.append(trainer.config)))
        return config in steps

    assert is_trained(small(temperature="holdout"))
    assert is_trained(small())  # on all of the data, where that one held a tenth out
    assert is_trained(small(method="rigl", validation=0.1))
    assert is_trained(small(method="rigl", validation=0.1, temperature="holdout"))  # RigL's checkpoints are not kept
    assert is_trained(small(validation=0.2))
    path = tmp_path / small(validation=0.2).digest() / "versions.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"torch": "1.0"}))
    assert is_trained(small(validation=0.2, temperature="holdout"))


def test_one_pilot_serves_all_seeds(tmp_path):
    results = [train(small(temperature="pilot", seed=seed), tmp_path / f"{seed}") for seed in (0, 1)]
    assert results[0]["temperature"] == results[1]["temperature"] is not None
    assert len(list((tmp_path / "pilots").iterdir())) == 1
    train(small(temperature="pilot", sparsity=0.5), tmp_path / "other")
    assert len(list((tmp_path / "pilots").iterdir())) == 2
    # the final model is trained on all of the data, as without a pilot
    plain = train(small(), tmp_path / "plain")
    assert plain["test"]["report"] == results[0]["test"]["report"]


def test_evaluate_a_run(tmp_path):
    result = train(small(method="rigl-mcdp", temperature="holdout"), tmp_path / "a")
    report = evaluate_run(tmp_path / "a")
    assert report.to_dict()["metrics"] == result["test"]["report"]
    scaled = evaluate_run(tmp_path / "a", temperature=True)
    assert scaled.accuracy == report.accuracy
    assert scaled.nll == pytest.approx(result["test"]["report-temperature"]["nll"]["value"], rel=1e-5)
    assert evaluate_run(tmp_path / "a", split="validation").n == 64
    assert evaluate_run(tmp_path / "a", masks=3).nll != report.nll
    with pytest.raises(CiglError, match="no tset data"):
        evaluate_run(tmp_path / "a", split="tset")


def test_evaluate_refuses_what_is_not_finished(tmp_path):
    with pytest.raises(CiglError, match="is not a run folder"):
        evaluate_run(tmp_path)

    def bomb(trainer, row):
        raise Stop

    with pytest.raises(Stop):
        train(small(), tmp_path / "a", progress=bomb)
    with pytest.raises(CiglError, match="not finished: resume it with `cigl train --resume"):
        evaluate_run(tmp_path / "a")
    train(small(), tmp_path / "b")
    with pytest.raises(CiglError, match="has no temperature"):
        evaluate_run(tmp_path / "b", temperature=True)


def test_a_training_leaves_json_that_scripts_can_read(tmp_path):
    process = start(tmp_path / "a", "--json", epochs=2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads((tmp_path / "a" / "result.json").read_text())["temperature"] is None
    assert torch.get_num_threads() >= 1


def test_a_checkpoint_of_another_model_is_one_sentence():
    """The user's factory makes another network today than when the run began."""
    trainer = Trainer(small(), Splits.of(small()))
    state = trainer.state()
    state["model"] = {f"old.{name}": value for name, value in state["model"].items()}
    with pytest.raises(CiglError, match="another model than mlp makes now: Unexpected key") as error:
        trainer.load(state)
    assert "\n" not in str(error.value)
