"""Real processes, real kills: nothing is lost but the work since the last checkpoint, nothing is left running."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from quick import METHODS, holder, long_study, quick, start, times_begun, until, written

from cigl import CiglError
from cigl.study.engine import run_cells
from cigl.study.grid import cells
from cigl.study.local import ATTEMPTS, LocalWorkers, _Worker
from cigl.study.store import StudyFolder
from cigl.train.folder.run_folder import RunFolder

RIGL = {"rigl": METHODS["rigl"]}


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] == "Z"


def saved(run):
    return any((run / "checkpoints").glob("*.safetensors"))


def under_way(run, epochs=3):
    return lambda: len(RunFolder(run).read_metrics()) >= epochs and holder(run)


def test_two_commands_share_a_study_and_a_killed_worker_costs_nothing(tmp_path):
    file = written(long_study(100, seeds=(0, 1), methods=RIGL), tmp_path / "long.yaml")
    study = StudyFolder(tmp_path / "out")
    first = start(file, study.path, "--jobs", "1")
    until(study.file.is_file)
    runs = [study.folder(cell).path for cell in cells(study.read())]
    victim = until(under_way(runs[0]))
    assert victim != first.pid
    os.kill(victim, signal.SIGKILL)
    second = start(file, study.path, "--jobs", "1", "--json")
    output, errors = second.communicate(timeout=900)
    assert second.returncode == 0, errors
    assert json.loads(output)["done"] == 2
    assert first.wait(900) == 0, first.stderr.read()
    assert times_begun(runs[0]) == 2
    assert times_begun(runs[1]) == 1
    for run in runs:
        assert [row["epoch"] for row in RunFolder(run).read_metrics()] == list(range(1, 101))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_engine_is_the_end_of_its_workers(number, tmp_path):
    file = written(long_study(5000, methods=RIGL), tmp_path / "long.yaml")
    study = StudyFolder(tmp_path / "out")
    process = start(file, study.path, "--jobs", "1")
    until(study.file.is_file)
    run = study.folder(cells(study.read())[0]).path
    worker = until(under_way(run))
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "finished runs are kept; the same command resumes the study" in errors
    until(lambda: gone(worker))
    assert saved(run)  # the worker was asked to stop, and saved itself
    assert not study.folder(cells(study.read())[0]).is_locked
    assert not (run / "error.json").exists()


def test_a_run_that_kills_its_workers_is_given_up_and_reported(tmp_path, monkeypatch):
    """In place of a worker, a process that ends at the first order."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    folder = StudyFolder(tmp_path)
    folder.create(quick())
    tally = run_cells(folder, cells(quick()), LocalWorkers(2, folder.log), lambda tally, news: None)
    assert len(tally.failed) == 2
    for message in tally.failed.values():
        assert f"died {ATTEMPTS} times (exit code 1)" in message
    assert len(folder.find().failed) == 2


class _Dying:
    """A worker whose process dies: of its run, or after it."""

    started = 0

    def __init__(self, threads, log, ranks):
        type(self).started += 1
        self.is_alive = True

    def do(self, order, report):
        self.is_alive = False
        return {"state": "done", "message": "", "seconds": 0.0} if order["path"] == "dies after its run" else None

    def stop(self):
        pass

    def wait(self):
        pass

    def ending(self):
        return "SIGKILL"


def test_deaths_are_counted_as_they_are(tmp_path, monkeypatch):
    """A process that died before the run began is replaced and not counted; an end on request is no death."""
    monkeypatch.setattr("cigl.study.local._Worker", _Dying)
    monkeypatch.setattr(_Dying, "started", 0)
    workers = LocalWorkers(1, tmp_path / "log")
    assert workers.submit({"path": "dies after its run", "config": {}, "masks": 0}).result()["state"] == "done"
    with pytest.raises(CiglError, match=rf"died {ATTEMPTS} times \(SIGKILL\)"):
        workers.submit({"path": "dies", "config": {}, "masks": 0}).result()
    assert _Dying.started == 1 + ATTEMPTS
    workers._closed = True
    with pytest.raises(CiglError, match="stopped before this run was done") as error:
        workers._do({"path": "dies", "config": {}, "masks": 0})
    assert "died" not in str(error.value)
    assert _Dying.started == 2 + ATTEMPTS
    workers.close()


def test_a_worker_stops_between_runs(tmp_path):
    with (tmp_path / "log").open("w") as log:
        worker = _Worker(1, log, 1)
        worker.stop()
        assert worker.processes[0].wait(900) in (0, -signal.SIGTERM)


def test_workers_share_the_threads(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("cigl.study.local.cores", lambda: 8)
    monkeypatch.setattr("cigl.study.local._Worker", lambda threads, log, ranks: asked.append(threads) or _Done())
    for jobs, ranks in ((1, 1), (3, 1), (20, 1), (2, 2)):
        workers = LocalWorkers(jobs, tmp_path / "log", ranks)
        workers.submit({"path": "", "config": {}, "masks": 0}).result()
        workers.close()
    assert asked == [8, 2, 1, 2]


class _Done:
    """A worker that has nothing to do."""

    is_alive = True

    def do(self, order, report):
        return {"state": "done", "message": "", "seconds": 0.0}

    def stop(self):
        pass

    def wait(self):
        pass


@pytest.mark.slow
def test_a_killed_rank_of_a_studys_run_costs_nothing(tmp_path):
    file = written(long_study(100, methods=RIGL), tmp_path / "long.yaml")
    study = StudyFolder(tmp_path / "out")
    process = start(file, study.path, "--jobs", "1", "--ranks", "2", "--json")
    until(study.file.is_file)
    run = study.folder(cells(study.read())[0]).path
    first = until(under_way(run))
    (other,) = [pid for pid in children(process.pid) if pid != first]
    os.kill(other, signal.SIGKILL)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert json.loads(output)["done"] == 1
    assert times_begun(run) == 2
    assert RunFolder(run).read_json("result.json")["versions"]["ranks"] == "2"
    assert [row["epoch"] for row in RunFolder(run).read_metrics()] == list(range(1, 101))
    assert "rank 1 of 2 no longer answers" in study.log.read_text()


def children(pid):
    """Whichever of its threads started them (Linux)."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


@pytest.mark.slow
def test_a_failed_run_of_several_ranks_is_reported_and_the_next_one_runs(tmp_path):
    methods = {"bad": {"method": "rigl", "batch_size": 63}, "rigl": METHODS["rigl"]}
    file = written(quick(methods=methods), tmp_path / "mine.yaml")
    study = StudyFolder(tmp_path / "out")
    process = start(file, study.path, "--jobs", "1", "--ranks", "2", "--json")
    output, errors = process.communicate(timeout=900)
    state = json.loads(output)
    assert process.returncode == 1, errors
    assert state["done"] == 1
    assert "2 ranks can't divide into equal parts" in state["failed"][0]["message"]
