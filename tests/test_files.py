import os
import subprocess
import sys

import pytest

from cigl.files import LEFTOVERS, is_locked, locked, whole_file


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


def test_one_process_has_a_lock_at_a_time(tmp_path):
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
    assert not is_locked(path)
    with locked(path, wait=False):
        pass


def test_waiting_for_a_lock(tmp_path):
    code = "import sys, pathlib; from cigl.files import locked\nwith locked(pathlib.Path(sys.argv[1])): print('mine')"
    with locked(tmp_path / "lock"):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    assert process.communicate(timeout=60)[0] == b"mine\n"


def test_where_there_are_no_locks(tmp_path):
    """On Windows there is no fcntl: everything else must work."""
    code = """
import sys
sys.modules["fcntl"] = None
import pathlib
import cigl.data, cigl.study.store, cigl.train.run
from cigl.files import is_locked, locked
path = pathlib.Path(sys.argv[1]) / "lock"
with locked(path), locked(path, wait=False):
    assert not is_locked(path)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
