"""How many threads a run is given, that the run remembers them, and that a difference is named."""

import pytest
import torch

from cigl import CiglError, CiglWarning
from cigl.train.config import Config
from cigl.train.evaluate import evaluate_run
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import resume, train

SMALL = {"train_size": 320, "epochs": 2, "update_every": 4, "average_of": "p*W"}


class Stop(Exception):
    pass


def stop_after_an_epoch(trainer, row):
    if row is not None:
        raise Stop


@pytest.fixture
def many():
    """A machine on which torch would take four threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def recorded(folder, name="versions.json"):
    found = RunFolder(folder).read_json(name)
    return found.get("versions", found)["threads"]


def test_a_small_network_takes_one_thread_and_gives_the_others_back(many, tmp_path):
    seen = []
    result = train(Config(**SMALL), tmp_path / "a", progress=lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 4
    assert recorded(tmp_path / "a") == result["versions"]["threads"] == "1"


def test_as_many_as_asked_for(many, tmp_path):
    train(Config(**SMALL), tmp_path / "a", threads=2)
    assert recorded(tmp_path / "a") == recorded(tmp_path / "a", "result.json") == "2"
    with pytest.raises(CiglError, match="threads is 0: give a whole number, at least 1"):
        train(Config(**SMALL), tmp_path / "b", threads=0)
    assert not (tmp_path / "b").exists()


def test_a_run_resumes_with_the_threads_it_was_started_with(many, tmp_path, recwarn):
    with pytest.raises(Stop):
        train(Config(**SMALL), tmp_path / "a", threads=2, progress=stop_after_an_epoch)
    seen = []
    resume(tmp_path / "a", progress=lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert not [each for each in recwarn if "resumed" in str(each.message)]


def test_other_threads_are_named(many, tmp_path):
    with pytest.raises(Stop):
        train(Config(**SMALL), tmp_path / "a", progress=stop_after_an_epoch)
    with pytest.warns(CiglWarning, match="started with 1 thread and is resumed with 3 threads: .* not be bit for bit"):
        resume(tmp_path / "a", threads=3)
    assert recorded(tmp_path / "a") == "1"
    assert recorded(tmp_path / "a", "result.json") == "3"


def test_evaluation_takes_the_threads_of_the_run(many, tmp_path, monkeypatch):
    train(Config(**SMALL), tmp_path / "a", threads=2)
    seen = []
    monkeypatch.setattr("cigl.train.evaluate.report", lambda **_: seen.append(torch.get_num_threads()))
    evaluate_run(tmp_path / "a")
    assert seen == [2]
