"""Archives from elsewhere, unpacked inside one folder and nowhere else.

Only plain files and folders are taken. A member whose path leads out of the folder, and every link or device, stops
the unpacking: none of the datasets has one, so its presence means that the archive isn't what it should be.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from cigl.common.errors import CiglError

LIMIT = 8 << 30  # bytes unpacked in all: more than any of these datasets, less than a disk


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> Path:
    """Unpack a tar (of any compression) or zip file into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for member in _members(archive):
            if not (member.is_folder or member.is_file):
                raise CiglError(f"{archive.name} holds a link or device ({member.name}): not unpacked.")
            target = _inside(archive, folder, member.name)
            if member.is_folder:
                target.mkdir(parents=True, exist_ok=True)
                continue
            if (limit := limit - member.size) < 0:
                raise CiglError(f"{archive.name} unpacks to more than any dataset here: not unpacked.")
            with member.open() as content:
                _write(content, target, member.size, archive)
    except RuntimeError as error:  # what zipfile raises for passwords and odd compressions
        raise CiglError(f"{archive.name} can't be unpacked: {error}.") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise CiglError(f"{archive.name} is damaged and can't be unpacked: {error}.") from error
    except OSError as error:
        if error.errno is None:  # what gzip and bz2 raise for damaged data
            raise CiglError(f"{archive.name} is damaged and can't be unpacked: {error}.") from error
        raise CiglError(f"{archive.name} can't be unpacked in {folder}: {error.strerror}.") from error
    return folder


class _Member(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool
    size: int
    open: Callable[[], IO[bytes]]


def _members(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for each in zipped.infolist():
                is_plain = stat.S_IFMT(each.external_attr >> 16) in (0, stat.S_IFREG)
                yield _Member(each.filename, each.is_dir(), is_plain, each.file_size, partial(zipped.open, each))
    else:
        with tarfile.open(archive) as tar:
            for one in tar:
                content = cast("Callable[[], IO[bytes]]", partial(tar.extractfile, one))  # None for what is no file
                yield _Member(one.name, one.isdir(), one.isreg(), one.size, content)


def _inside(archive: Path, folder: Path, name: str) -> Path:
    """Where a member goes; its path must lead there with no detour."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise CiglError(f"{archive.name} holds a path that leads out of its folder ({name}): not unpacked.")
    target = folder.joinpath(*path.parts)
    if not target.resolve().is_relative_to(folder.resolve()):  # through a link that was in the folder before
        raise CiglError(f"{archive.name} holds a path that leads out of its folder ({name}): not unpacked.")
    return target


def _write(content: IO[bytes], target: Path, size: int, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    if target.stat().st_size != size:
        raise CiglError(f"{archive.name} is damaged and can't be unpacked: {target.name} is cut short.")
