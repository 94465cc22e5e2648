"""Datasets onto the disk: official file first, then a registry; decoded, checked by content, and only then stored."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cigl.common.errors import CiglError
from cigl.common.files import locked
from cigl.common.progress import counting
from cigl.data.catalogue import Dataset
from cigl.data.sources import store
from cigl.data.sources.archive import unpack
from cigl.data.sources.download import download_file
from cigl.data.sources.formats import Arrays

_ARCHIVES = (".tar.gz", ".zip")


def fetch_dataset(name: str, dataset: Dataset, root: Path, progress: bool) -> Path:
    """Put the dataset into its folder under ``root``, unless it is there and intact."""
    folder = root / name
    if _intact(folder, name):  # before the lock, which can't be made in a read-only folder
        return folder
    with locked(root / ".lock"):  # the next process waits, and finds it done
        if not _intact(folder, name):
            _fill(folder, name, dataset, root, progress)
    return folder


def _intact(folder: Path, name: str) -> bool:
    try:
        return store.exists(folder) and bool(store.load(folder, name))
    except CiglError:
        return False


def _fill(folder: Path, name: str, dataset: Dataset, root: Path, progress: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        arrays, source = _from_anywhere(name, dataset, root, progress)
        store.save(folder, arrays, source)
    except OSError as error:
        raise CiglError(f"{name} can't be written to {folder}: {error.strerror or error}.") from error
    shutil.rmtree(root / "downloads" / name, ignore_errors=True)


def _from_anywhere(name: str, dataset: Dataset, root: Path, progress: bool) -> tuple[Arrays, str]:
    try:
        return _official(name, dataset, root, progress), dataset.official[0].url
    except CiglError as error:
        first = str(error).rstrip(".")
    if dataset.mirror is None:
        files = ", ".join(remote.url for remote in dataset.official)
        raise CiglError(
            f"{name} can't be fetched: {first}. No package has it: put {files} into {root / 'downloads' / name} "
            f"and run `cigl data get {name}` again."
        )
    try:
        message = f"{name} from {dataset.mirror.name}"  # its client reports no progress
        with counting(message, not progress), tempfile.TemporaryDirectory(prefix="cigl-") as temporary:
            arrays = dataset.mirror.read(dataset.mirror.fetch(Path(temporary)))
        dataset.facts.check(name, arrays)
    except CiglError as error:
        raise CiglError(f"{name} can't be fetched: {first}; and from {dataset.mirror.name}: {error}") from None
    return arrays, dataset.mirror.name


def _official(name: str, dataset: Dataset, root: Path, progress: bool) -> Arrays:
    kept = root / "downloads" / name
    files = [download_file(remote, kept, progress) for remote in dataset.official]
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=kept) as temporary:
        unpacked = Path(temporary)
        for file in files:
            if file.name.endswith(_ARCHIVES):
                unpack(file, unpacked)
            else:
                shutil.copyfile(file, unpacked / file.name)
        arrays = dataset.read(unpacked)
    dataset.facts.check(name, arrays)
    return arrays
