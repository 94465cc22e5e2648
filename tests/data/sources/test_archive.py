"""Nothing is written outside the folder, and no link is made."""

import io
import random
import stat
import tarfile
import zipfile

import pytest
from samples import tar_bytes, write_files, zip_bytes

from cigl.common.errors import CiglError
from cigl.data.sources.archive import unpack

GOOD = {"a/b.txt": b"hello" * 100, "./c.txt": b"", "d.bin": bytes(range(256)) * 50}


def files_under(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes, lambda files: tar_bytes(files, "w:xz")])
def test_good_archives(tmp_path, make):
    (tmp_path / "x").write_bytes(make(GOOD))
    unpack(tmp_path / "x", tmp_path / "out")
    assert files_under(tmp_path / "out") == {name.removeprefix("./"): content for name, content in GOOD.items()}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/cigl-evil", "..", "a\\..\\evil", "C:evil"])
@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_paths_that_lead_out(tmp_path, make, name):
    (tmp_path / "x").write_bytes(make({name: b"evil"}))
    with pytest.raises(CiglError, match="leads out of its folder"):
        unpack(tmp_path / "x", tmp_path / "in" / "out")
    assert files_under(tmp_path / "in") == {}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices(tmp_path, kind):
    with tarfile.open(tmp_path / "x", "w") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
        inside = tarfile.TarInfo("link/evil")
        inside.size = 4
        tar.addfile(inside, io.BytesIO(b"evil"))
    with pytest.raises(CiglError, match="link or device"):
        unpack(tmp_path / "x", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as zipped:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(member, "/etc")
    with pytest.raises(CiglError, match="link or device"):
        unpack(tmp_path / "x", tmp_path / "out")


def test_a_link_that_was_there_before(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "x").write_bytes(tar_bytes(GOOD))
    with pytest.raises(CiglError, match="leads out"):
        unpack(tmp_path / "x", tmp_path / "out")
    assert files_under(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    "make", [tar_bytes, zip_bytes, lambda files: tar_bytes(files, "w:xz"), lambda _: b"noise" * 99]
)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated_archives(tmp_path, make, share):
    content = make({"big.bin": random.Random(0).randbytes(100_000)})
    (tmp_path / "x").write_bytes(content[: int(share * len(content))])
    with pytest.raises(CiglError, match="damaged"):
        unpack(tmp_path / "x", tmp_path / "out")


def test_too_much(tmp_path):
    (tmp_path / "x").write_bytes(tar_bytes(GOOD))
    with pytest.raises(CiglError, match="more than any dataset"):
        unpack(tmp_path / "x", tmp_path / "out", limit=1000)


def test_no_room_to_write(tmp_path):
    write_files(tmp_path, {"out/a": b"a file where a folder should be", "x": tar_bytes(GOOD)})
    with pytest.raises(CiglError, match="can't be unpacked"):
        unpack(tmp_path / "x", tmp_path / "out")


def test_a_zip_with_a_password(tmp_path):
    content = bytearray(zip_bytes({"a.txt": b"hello"}))
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of encryption, in the directory
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CiglError, match=r"x can't be unpacked: .*password required"):
        unpack(tmp_path / "x", tmp_path / "out")
