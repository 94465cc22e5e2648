"""Finite differences, in double: the portable kernels, built with doubles in the place of floats."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cigl.runtime.program

KERNELS = Path(cigl.runtime.program.__file__).parent / "kernels"
IN_DOUBLE = (
    (r"\bfloat\b", "double"),
    (r"LANES \* 4", "LANES * 8"),
    (r"typedef int32_t Mask", "typedef int64_t Mask"),
    (r"vector_size\(32\), aligned\(4\)", "vector_size(64), aligned(8)"),
    (r"aligned\(4\)", "aligned(8)"),
)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_gradcheck_in_double(tmp_path):
    for source in KERNELS.iterdir():
        text = source.read_text()
        for pattern, replacement in IN_DOUBLE:
            text = re.sub(pattern, replacement, text)
        (tmp_path / source.name).write_text(text)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-psabi", "-DVARIANT=portable", "-DLANES=8"]
    sources = sorted(map(str, tmp_path.glob("*.cpp")))
    subprocess.run(["g++", *flags, *sources, "-o", str(tmp_path / "_kernels.so")], check=True)
    script = Path(__file__).with_name("gradcheck_double.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "right in double" in done.stdout
