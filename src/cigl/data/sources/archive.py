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
from pathlib import Path, PurePosixPath
from typing import IO

from cigl.common.errors import CiglError

LIMIT = 8 << 30  # bytes unpacked in all: more than any of these datasets, less than a disk


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> Path:
    """Unpack a tar (of any compression) or zip file into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, limit)
        else:
            _untar(archive, folder, limit)
    except RuntimeError as error:  # what zipfile raises for passwords and odd compressions
        raise CiglError(f"{archive.name} can't be unpacked: {error}.") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise CiglError(f"{archive.name} is damaged and can't be unpacked: {error}.") from error
    except OSError as error:
        if error.errno is None:  # what gzip and bz2 raise for damaged data
            raise CiglError(f"{archive.name} is damaged and can't be unpacked: {error}.") from error
        raise CiglError(f"{archive.name} can't be unpacked in {folder}: {error.strerror}.") from error
    return folder


def _untar(archive: Path, folder: Path, limit: int) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                _inside(archive, folder, member.name).mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                limit = _left(archive, limit, member.size)
                content = tar.extractfile(member)
                assert content is not None
                _write(content, _inside(archive, folder, member.name), member.size, archive)
            else:
                raise CiglError(f"{archive.name} holds a link or device ({member.name}): not unpacked.")


def _unzip(archive: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                _inside(archive, folder, member.filename).mkdir(parents=True, exist_ok=True)
            elif kind in (0, stat.S_IFREG):
                limit = _left(archive, limit, member.file_size)
                with zipped.open(member) as content:
                    _write(content, _inside(archive, folder, member.filename), member.file_size, archive)
            else:
                raise CiglError(f"{archive.name} holds a link or device ({member.filename}): not unpacked.")


def _inside(archive: Path, folder: Path, name: str) -> Path:
    """Where a member goes; its path must lead there with no detour."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise CiglError(f"{archive.name} holds a path that leads out of its folder ({name}): not unpacked.")
    target = folder.joinpath(*path.parts)
    if not target.resolve().is_relative_to(folder.resolve()):  # through a link that was in the folder before
        raise CiglError(f"{archive.name} holds a path that leads out of its folder ({name}): not unpacked.")
    return target


def _left(archive: Path, limit: int, size: int) -> int:
    if size > limit:
        raise CiglError(f"{archive.name} unpacks to more than any dataset here: not unpacked.")
    return limit - size


def _write(content: IO[bytes], target: Path, size: int, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    if target.stat().st_size != size:
        raise CiglError(f"{archive.name} is damaged and can't be unpacked: {target.name} is cut short.")
