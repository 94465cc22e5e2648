"""What a run was started on: recorded, compared as it resumes, and missed by nobody."""

import pytest

from cigl import CiglError, CiglWarning
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import resume, train

SMALL = {"train_size": 320, "epochs": 2, "update_every": 4, "average_of": "p*W"}


class Stop(Exception):
    pass


def stop_after_an_epoch(trainer, row):
    if row is not None:
        raise Stop


def test_other_versions_are_named_in_the_same_line(tmp_path):
    with pytest.raises(Stop):
        train(Config(**SMALL), tmp_path / "a", progress=stop_after_an_epoch)
    folder = RunFolder(tmp_path / "a")
    folder.write_json("versions.json", folder.read_json("versions.json") | {"torch": "2.6.0", "cpu": "AVX2"})
    with pytest.warns(CiglWarning, match=r"started with torch 2\.6\.0 and CPU instructions AVX2 and is resumed with"):
        resume(tmp_path / "a")


def test_a_run_without_a_record_resumes(tmp_path):
    with pytest.raises(Stop):
        train(Config(**SMALL), tmp_path / "a", progress=stop_after_an_epoch)
    (tmp_path / "a" / "versions.json").unlink()
    assert resume(tmp_path / "a")["test"]


def test_other_data_is_refused_with_what_changed(tmp_path):
    with pytest.raises(Stop):
        train(Config(**SMALL), tmp_path / "a", progress=stop_after_an_epoch)
    folder = RunFolder(tmp_path / "a")
    folder.write_json("data.json", folder.read_json("data.json") | {"train": 319})
    with pytest.raises(CiglError, match=r"mnist1d has changed .* \(train: 319, now 320\): put it back"):
        resume(tmp_path / "a")
