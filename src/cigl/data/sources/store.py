"""The store of datasets: each is decoded, as four .npy files and a list of their checksums, written last.

So a dataset whose writing was cut short isn't there, and one that was damaged later is noticed when it is opened.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np

from cigl.common.errors import CiglError
from cigl.common.files import whole_file
from cigl.data.sources.formats import Arrays

LIST = "checksums.json"


def root(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where datasets are kept: ``folder``, else $CIGL_DATA, else ~/.cache/cigl."""
    chosen = folder or os.environ.get("CIGL_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "cigl"


def save(folder: Path, arrays: Arrays, source: str) -> None:
    """Write the arrays; ``source`` says where they came from."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for name, array in arrays._asdict().items():
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(array))
        with whole_file(folder / f"{name}.npy") as path:
            path.write_bytes(buffer.getbuffer())
        sums[name] = hashlib.sha256(buffer.getbuffer()).hexdigest()
    with whole_file(folder / LIST) as path:
        path.write_text(json.dumps({"source": source, "sha256": sums}, indent=1) + "\n")


def exists(folder: Path) -> bool:
    """Whether a dataset was stored here (load checks whether it is intact)."""
    return (folder / LIST).is_file()


def load(folder: Path, name: str) -> Arrays:
    """The arrays, each file compared with its checksum before anything in it is interpreted."""
    again = f"remove {folder} and run `cigl data get {name}`"
    arrays = []
    try:
        sums = json.loads((folder / LIST).read_bytes())["sha256"]
        for part in Arrays._fields:
            content = (folder / f"{part}.npy").read_bytes()
            if hashlib.sha256(content).hexdigest() != sums[part]:
                raise CiglError(f"{name} in {folder} is damaged ({part}.npy has changed): {again}.")
            arrays.append(np.load(io.BytesIO(content), allow_pickle=False))
            if arrays[-1].dtype != np.uint8:
                raise ValueError(f"{arrays[-1].dtype} where bytes should be")
    except CiglError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CiglError(f"{name} in {folder} can't be read ({error}): {again}.") from error
    return Arrays(*arrays)
