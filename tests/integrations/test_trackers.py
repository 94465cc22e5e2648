"""Trackers get a run's numbers once, however often it is stopped; their own libraries read them back."""

import csv
import json
import warnings

import pytest

from cigl.common.errors import CiglError, CiglWarning
from cigl.integrations.trackers import TRACKERS, check_trackers
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import resume, train

CONFIG = Config(
    model="mlp-20", train_size=640, epochs=4, update_every=5, average_from=0.6, update_until=0.5, temperature="holdout"
)
EVERY = 4


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*snapshots will be averaged")
        yield


class Memory:
    """A tracker that remembers, over all its instances."""

    where = "here"

    def __init__(self, folder, config, state):
        self.id = state.setdefault("id", folder.name)
        self.rows, self.ends = LOGGED.setdefault(self.id, ([], []))

    def scalars(self, values, step):
        self.rows.append((step, dict(values)))

    def report(self, values, step, files):
        self.rows.append((step, {"report": dict(values), "files": {k: v.is_file() for k, v in files.items()}}))

    def close(self, finished):
        self.ends.append(finished)


LOGGED = {}


@pytest.fixture
def memory(monkeypatch):
    LOGGED.clear()
    monkeypatch.setitem(TRACKERS, "json", Memory)  # json is a library that is there


def stop_at(step):
    def progress(trainer, row):
        if trainer.step == step:
            raise KeyboardInterrupt

    return progress


def stopped_twice(out, **options):
    """Checkpoints are after 9 steps; steps 10 to 14 and 10 to 12 are trained again."""
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, out, progress=stop_at(14), log_every=EVERY, **options)
    with pytest.raises(KeyboardInterrupt):
        resume(out, progress=stop_at(12), log_every=EVERY)
    return resume(out, log_every=EVERY)


def numbers(rows):
    """Without what depends on the clock."""
    return [(step, {k: v for k, v in values.items() if "second" not in k}) for step, values in rows]


def test_a_resumed_run_logs_nothing_twice(tmp_path, memory):
    train(CONFIG, tmp_path / "whole", log=("json",), log_every=EVERY)
    stopped_twice(tmp_path / "stopped", log=("json",))
    whole, stopped = (LOGGED[name] for name in ("whole", "stopped"))
    steps = [step for step, _ in stopped[0]]
    assert steps == [4, 8, 9, 12, 16, 18, 20, 24, 27, 28, 32, 36, 36]  # every fourth, the ends of epochs, the report
    assert [list(values) for _, values in numbers(whole[0])] == [list(values) for _, values in numbers(stopped[0])]
    epochs = [[values["epoch/loss"] for _, values in rows if "epoch/loss" in values] for rows in (whole[0], stopped[0])]
    assert epochs[0] == epochs[1]
    assert (whole[1], stopped[1]) == ([True], [False, False, True])
    report = stopped[0][-1][1]
    assert {"test/accuracy", "test/ece_15", "test_temperature/ece_15"} <= set(report["report"])
    assert report["files"] == dict.fromkeys(report["files"], True)
    assert "test/reliability" in report["files"]


def test_csv_has_every_row_once(tmp_path):
    stopped_twice(tmp_path / "a")
    with (tmp_path / "a" / "metrics.csv").open() as file:
        epochs = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [{k: float(v) for k, v in row.items()} for row in epochs] == lines
    steps = [int(row["step"]) for row in RunFolder(tmp_path / "a").read_steps()]
    assert steps == [4, 8, 9, 12, 16, 18, 20, 24, 27, 28, 32, 36]
    assert not (tmp_path / "a" / "trackers.json").exists()


def test_a_torn_row_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_steps({"step": 4, "loss": 1.5})
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("8,0.")
    assert folder.read_steps() == [{"step": "4", "loss": "1.5"}]
    folder.cut_metrics(0, 4)
    assert (tmp_path / "steps.csv").read_text() == "step,loss\n4,1.5\n"


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(Memory, "scalars", lambda *_: 1 / 0)
    with pytest.warns(CiglWarning, match=r"json failed \(division by zero\): the run continues without it") as caught:
        result = train(CONFIG, tmp_path / "a", log=("json",))
    assert result["test"]["report"]["accuracy"]["value"] > 0.1
    assert len([each for each in caught if "json failed" in str(each.message)]) == 1


def test_what_can_t_be_logged_to_is_said_before_anything_happens(tmp_path, monkeypatch):
    with pytest.raises(CiglError, match="did you mean 'wandb'"):
        train(CONFIG, tmp_path / "a", log=("wanbd",))
    monkeypatch.setattr("cigl.integrations.trackers.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow"):
        with pytest.raises(CiglError, match=rf"{name} is not installed: pip install 'cigl\[{name}\]'\."):
            train(CONFIG, tmp_path / "a", log=(name,))
    assert not (tmp_path / "a").exists()


def test_a_folder_named_wandb_is_not_the_library(tmp_path, monkeypatch):
    (tmp_path / "notalibrary").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(TRACKERS, "notalibrary", Memory)
    with pytest.raises(CiglError, match="is not installed"):
        check_trackers(("notalibrary",))


def test_the_environment_names_trackers_for_all_runs(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("CIGL_LOG", "json")
    train(CONFIG, tmp_path / "a")
    train(CONFIG, tmp_path / "b", log=())
    assert set(LOGGED) == {"a"}


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped_twice(tmp_path / "a", log=("tensorboard",))
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    metrics = RunFolder(tmp_path / "a").read_metrics()
    assert [e.value for e in events.Scalars("epoch/loss")] == pytest.approx([row["loss"] for row in metrics])
    assert [e.step for e in events.Scalars("train/loss")] == [4, 8, 9, 12, 16, 18, 20, 24, 27, 28, 32, 36]
    assert events.Images("test/reliability")[0].width > 100
    assert len(events.Scalars("test/ece_15")) == 1
    assert any("configuration" in tag for tag in events.Tags()["tensors"])


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    stopped_twice(tmp_path / "a", log=("mlflow",))
    client = MlflowClient()
    experiment = client.get_experiment_by_name("cigl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a")
    assert run.data.params["model"] == "mlp-20"
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == [4, 8, 9, 12, 16, 18, 20, 24, 27, 28, 32, 36]
    assert "test/ece_15" in run.data.metrics
    assert {each.path for each in client.list_artifacts(run.info.run_id)} >= {"report.png", "report.txt"}


def test_wandb(tmp_path):
    pytest.importorskip("wandb")
    stopped_twice(tmp_path / "a", log=("wandb",))
    runs = list((tmp_path / "a" / "wandb").glob("offline-run-*"))
    assert len(runs) == 3  # one run, whose three parts `wandb sync` joins by its name
    files = [file for path in runs for file in path.glob("run-*.wandb")]
    assert len({file.name for file in files}) == 1
    assert any(list(path.glob("files/media/images/**/*.png")) for path in runs)
    assert "wandb sync" in json.loads((tmp_path / "a" / "trackers.json").read_text())["wandb"]["where"]
