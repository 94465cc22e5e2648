import os

import pytest

from cigl.files import LEFTOVERS, whole_file


def _fail_halfway(path):
    with whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    (tmp_path / "x.txt").write_text("old")
    with pytest.raises(RuntimeError):
        _fail_halfway(tmp_path / "x.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert (tmp_path / "x.txt").read_text() == "old"


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with whole_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.suffix == path.suffix
        assert list(tmp_path.glob(LEFTOVERS)) == [temporary]
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["x.txt"]
