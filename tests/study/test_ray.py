"""The same grid on Ray: a local one of two workers, one of them killed in mid-run."""

import builtins
import importlib
import os
import signal
import time

import pytest
from quick import METHODS, holder, long_study, start, times_begun, until, written

from cigl import CiglError
from cigl.study.grid import cells
from cigl.study.on_ray import find_ray
from cigl.study.store import StudyFolder
from cigl.train.folder.run_folder import RunFolder

EPOCHS = 300


@pytest.mark.slow
def test_a_killed_ray_worker_loses_nothing_and_nothing_is_run_twice(tmp_path):
    study = long_study(EPOCHS, methods={"rigl": METHODS["rigl"]}, seeds=(0, 1, 2))
    folder = StudyFolder(tmp_path / "out")
    process = start(written(study, tmp_path / "long.yaml"), folder.path, "--ray", "local", "--jobs", "2")
    until(folder.file.is_file)
    runs = [folder.folder(cell).path for cell in cells(folder.read())]
    os.kill(until(lambda: len(RunFolder(runs[0]).read_metrics()) > 3 and holder(runs[0])), signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert [times_begun(run) for run in runs] == [2, 1, 1]
    for run in runs:
        assert [row["epoch"] for row in RunFolder(run).read_metrics()] == list(range(1, EPOCHS + 1))
    assert len(folder.find().finished) == 3


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--jobs", "2"), ("--jobs", "1", "--ranks", "2")])
def test_a_stopped_study_on_ray_saves_its_runs(options, tmp_path):
    folder = StudyFolder(tmp_path / "out")
    file = written(long_study(5000, methods={"rigl": METHODS["rigl"]}), tmp_path / "long.yaml")
    process = start(file, folder.path, "--ray", "local", *options)
    until(folder.file.is_file)
    run = folder.folder(cells(folder.read())[0]).path
    until(lambda: len(RunFolder(run).read_metrics()) > 3 and holder(run))
    process.send_signal(signal.SIGTERM)
    assert process.wait(900) == 143
    assert any((run / "checkpoints").glob("*.safetensors"))
    assert not (run / "error.json").exists()


@pytest.mark.slow
def test_a_killed_rank_on_ray_loses_nothing(tmp_path):
    study = long_study(EPOCHS, methods={"rigl": METHODS["rigl"]})
    folder = StudyFolder(tmp_path / "out")
    process = start(
        written(study, tmp_path / "long.yaml"), folder.path, "--ray", "local", "--jobs", "1", "--ranks", "2"
    )
    until(folder.file.is_file)
    run = folder.folder(cells(folder.read())[0]).path
    os.kill(until(lambda: len(RunFolder(run).read_metrics()) > 3 and holder(run)), signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert times_begun(run) == 2
    assert [row["epoch"] for row in RunFolder(run).read_metrics()] == list(range(1, EPOCHS + 1))
    assert RunFolder(run).read_json("result.json")["versions"]["ranks"] == "2"


def test_without_ray_one_line_says_so(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **more):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(CiglError, match=r"pip install 'cigl\[ray\]'"):
        find_ray()


@pytest.mark.parametrize("has_places", [False, True])
def test_a_study_of_ranks_on_ray_can_be_stopped_at_any_moment(has_places, monkeypatch):
    """Also while Ray finds no place for a run, or its ranks do not end: a thread that waits on would never end."""
    ray = pytest.importorskip("ray")
    from cigl.study import on_ray

    class Places:
        def wait(self, seconds):
            time.sleep(seconds)
            return has_places

    class Ranks:
        def options(self, **_):
            return self

        def remote(self, *_):
            return object()

    removed = []
    groups = importlib.import_module("ray.util.placement_group")  # a function hides it
    monkeypatch.setattr(groups, "placement_group", lambda bundles: Places())
    monkeypatch.setattr(groups, "remove_placement_group", removed.append)
    monkeypatch.setattr("ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy", lambda *_, **__: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray, "wait", lambda tasks, timeout, **_: (time.sleep(min(timeout, 0.01)), ([], tasks))[1])
    monkeypatch.setattr(on_ray, "TICK", 0.01)
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2})
    cancelled = []
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    workers = on_ray.RayWorkers("local", 1, 2)
    workers._task = Ranks()
    future = workers.submit({"path": "", "config": {"device": "cpu"}, "masks": 0})
    until(lambda: len(workers._tasks) == 2 * has_places)
    workers.close()
    assert len(cancelled) == 2 * has_places
    with pytest.raises(CiglError, match="the study was stopped"):
        future.result(timeout=60)
    assert not removed
