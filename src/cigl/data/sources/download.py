"""Official files over HTTP: with checksum and progress; a broken download is resumed."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cigl.common.errors import CiglError
from cigl.common.progress import Tick, counting

TIMEOUT = 30.0  # seconds of silence before a connection counts as broken
TRIES = 4
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file that someone publishes, and the checksum that they publish beside it."""

    url: str
    checksum: str  # hex; its length distinguishes MD5 from SHA-256

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    def fits(self, path: Path) -> bool:
        digest = hashlib.md5(usedforsecurity=False) if len(self.checksum) == 32 else hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest() == self.checksum


def download_file(remote: Remote, folder: Path, progress: bool = True) -> Path:
    """The file in ``folder``, checked; a ``.part`` that an earlier try left is continued, not repeated."""
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.exists() and remote.fits(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with counting(remote.name, not progress, " MB", 1e6) as tick:
        _fill(remote.url, part, tick)
        if not remote.fits(part):
            part.unlink()
            _fill(remote.url, part, tick)  # the part was perhaps of another file: once more, from nothing
    if not remote.fits(part):
        part.unlink()
        raise CiglError(f"{remote.url} has another checksum than published ({remote.checksum}): not used.")
    os.replace(part, target)
    return target


def _fill(url: str, part: Path, tick: Tick) -> None:
    """Append to ``part`` until it is whole; each try resumes where the last one stopped."""
    reason = ""
    for _ in range(TRIES):
        try:
            _append(url, part, tick)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise CiglError(f"{url} can't be downloaded: {error.code} {error.reason}.") from error
            reason = f"{error.code} {error.reason}"
        except urllib.error.URLError as error:
            raise CiglError(f"{url} can't be reached: {error.reason}.") from error
        except (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
    raise CiglError(f"{url} failed {TRIES} times ({reason}): run it again, the download is resumed.")


def _append(url: str, part: Path, tick: Tick) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "cigl", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send: the checksum decides
            return
        raise
    with answer:
        if have and not (answer.status == 206 and _starts_at(answer.headers.get("Content-Range"), have)):
            if answer.status == 206:
                raise http.client.HTTPException("the server sent another range than asked for")
            have = 0  # the server sends everything again
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left and left.isdigit() else None
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                tick(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"{have:,} of {total:,} bytes")


def _starts_at(content_range: str | None, have: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {have}-")
