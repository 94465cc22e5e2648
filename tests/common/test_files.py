import os
import subprocess
import sys

import pytest

from cigl.common.files import LEFTOVERS, is_locked, locked, whole_file


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
    imports = "import sys, pathlib; from cigl.common.files import locked"
    code = f"{imports}\nwith locked(pathlib.Path(sys.argv[1])): print('mine')"
    with locked(tmp_path / "lock"):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    assert process.communicate(timeout=60)[0] == b"mine\n"


def without_fcntl(code, *arguments):
    """The code in a Python that has no fcntl, as on Windows; ``real`` is the real one, for what imitates Windows."""
    before = "import fcntl as real, os, pathlib, sys, types\nsys.modules['fcntl'] = None\ndel os.O_DIRECTORY\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", before + code, *map(str, arguments)], **pipes)


WINDOWS = """
def locking(number, mode, size):
    assert size == 1
    try:
        real.flock(number, mode)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None  # what msvcrt raises
modes = {"LK_NBLCK": real.LOCK_EX | real.LOCK_NB, "LK_UNLCK": real.LOCK_UN}
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, **modes)
"""


def test_locks_on_windows(tmp_path):
    code = (
        WINDOWS
        + """
from cigl.common.files import is_locked, locked, write
path = pathlib.Path(sys.argv[1]) / "lock"
assert not is_locked(path)
with locked(path):
    assert is_locked(path)
    try:
        with locked(path, wait=False):
            print("two have it")
    except BlockingIOError:
        print("one has it")
assert not is_locked(path)
write(path.with_name("a"), b"1")
"""
    )
    assert without_fcntl(code, tmp_path).communicate(timeout=60) == ("one has it\n", "")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_waiting_for_a_lock_on_windows(tmp_path):
    code = WINDOWS + "from cigl.common.files import locked\nwith locked(pathlib.Path(sys.argv[1])): print('mine')"
    with locked(tmp_path / "lock"):
        process = without_fcntl(code, tmp_path / "lock")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    assert process.communicate(timeout=60)[0] == "mine\n"


def test_where_files_cannot_be_locked_a_sentence_says_so(tmp_path):
    code = """
from cigl.common.errors import CiglError
from cigl.common.files import locked
try:
    with locked(pathlib.Path(sys.argv[1])):
        print("locked")
except CiglError as error:
    print(error)
"""
    said, errors = without_fcntl(code, tmp_path / "lock").communicate(timeout=60)
    assert said.startswith("files can't be locked"), errors


def test_everything_is_imported_without_fcntl():
    code = """
import importlib, pkgutil
import cigl
for module in pkgutil.walk_packages(cigl.__path__, "cigl."):
    if not {"_kernels", "__main__", "integrations"} & set(module.name.split(".")):
        importlib.import_module(module.name)
print("done")
"""
    said, errors = without_fcntl(code).communicate(timeout=300)
    assert said == "done\n", errors
