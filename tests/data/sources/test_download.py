"""Downloads that break, resume, lie and vanish."""

import hashlib
import random
import sys

import pytest
from server import serve

from cigl.common.errors import CiglError
from cigl.data.sources.download import TRIES, Remote, download_file

CONTENT = random.Random(0).randbytes(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serve({"/file.bin": CONTENT}) as (url, behaviour):
        yield f"{url}/file.bin", behaviour


@pytest.mark.parametrize("checksum", [SHA, MD5])
def test_a_file_comes_whole(server, tmp_path, checksum):
    url, behaviour = server
    path = download_file(Remote(url, checksum), tmp_path / "new", progress=False)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    download_file(Remote(url, checksum), tmp_path / "new", progress=False)
    assert behaviour.asked == [None]  # the second time nothing was asked for


def test_a_broken_connection_is_resumed(server, tmp_path):
    url, behaviour = server
    behaviour.cut = [100_000, 50_000]
    assert download_file(Remote(url, SHA), tmp_path, progress=False).read_bytes() == CONTENT
    assert behaviour.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_goes_on(server, tmp_path):
    url, behaviour = server
    behaviour.cut = [1000] * TRIES
    with pytest.raises(CiglError, match="the download is resumed"):
        download_file(Remote(url, SHA), tmp_path, progress=False)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[: 1000 * TRIES]
    assert not (tmp_path / "file.bin").exists()
    assert download_file(Remote(url, SHA), tmp_path, progress=False).read_bytes() == CONTENT
    assert behaviour.asked[-1] == f"bytes={1000 * TRIES}-"


def test_a_server_without_ranges_starts_again(server, tmp_path):
    url, behaviour = server
    behaviour.cut, behaviour.ranges = [100_000], False
    assert download_file(Remote(url, SHA), tmp_path, progress=False).read_bytes() == CONTENT


@pytest.mark.parametrize("stale", [b"something else", b"x" * 400_000])
def test_a_stale_part_is_thrown_away(server, tmp_path, stale):
    url, _ = server
    (tmp_path / "file.bin.part").write_bytes(stale)
    assert download_file(Remote(url, SHA), tmp_path, progress=False).read_bytes() == CONTENT


def test_a_whole_part_is_used(server, tmp_path):
    url, _ = server
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download_file(Remote(url, SHA), tmp_path, progress=False).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused(server, tmp_path):
    url, _ = server
    with pytest.raises(CiglError, match="another checksum"):
        download_file(Remote(url, "0" * 64), tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "message"), [(404, "404"), (403, "403"), (503, "503")])
def test_an_error_is_reported(server, tmp_path, status, message):
    url, behaviour = server
    behaviour.status = status
    with pytest.raises(CiglError, match=message):
        download_file(Remote(url, SHA), tmp_path, progress=False)
    assert len(behaviour.asked) == (TRIES if status >= 500 else 1)


def test_nobody_answers(tmp_path):
    with serve({}) as (url, _):
        pass
    with pytest.raises(CiglError, match="can't be reached"):
        download_file(Remote(f"{url}/file.bin", SHA), tmp_path, progress=False)


def test_progress_with_and_without_rich(server, tmp_path, monkeypatch, capsys):
    url, _ = server
    download_file(Remote(url, SHA), tmp_path / "a")
    assert capsys.readouterr().out == ""  # a script's output stays clean
    monkeypatch.setitem(sys.modules, "rich.console", None)
    download_file(Remote(url, SHA), tmp_path / "b")
    assert (tmp_path / "b" / "file.bin").read_bytes() == CONTENT
