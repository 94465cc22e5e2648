"""What ``import cigl`` brings with it: at most a tenth of what torch does, and none of the optional libraries.

The package imports its parts when they are first used. ``cigl.attach`` needs an optimizer, and torch imports its
compiler with the first one that is made: that is torch's part.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cigl

OPTIONAL = {
    "accelerate",
    "datasets",
    "lightning",
    "matplotlib",
    "netcal",
    "onnx",
    "onnxruntime",
    "pandas",
    "PIL",
    "pytorch_lightning",
    "ray",
    "relplot",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "tensorboard",
    "torchmetrics",
    "transformers",
    "typer",
    "yaml",
}
PUBLIC = "cigl.attach, cigl.evaluate, cigl.methods, cigl.save, cigl.load, cigl.Sparsifier"


def imported(code):
    code = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_core_brings_no_optional_library():
    found = imported(f"import cigl; {PUBLIC}")
    assert "torch" in found
    assert not OPTIONAL & {name.partition(".")[0] for name in found}


def _packages():
    """Rooms inside of rooms, which have nothing but a docstring."""
    root = Path(cigl.__path__[0]).parent
    for path in root.glob("cigl/*/**/__init__.py"):
        if "import" not in path.read_text():
            yield path.parent.relative_to(root)


@pytest.mark.parametrize(
    ("torch", "used"),
    [
        ("import torch, numpy", "cigl.evaluate, cigl.save, cigl.load"),
        ("import torch, numpy; torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)", PUBLIC),
    ],
)
def test_the_core_imports_at_most_a_tenth_more_modules_than_torch(torch, used):
    before = imported(torch)
    rooms = {".".join(path.parts) for path in _packages()}
    more = imported(f"{torch}; import cigl; {used}") - before - rooms
    assert 0 < len(more) <= len(before - imported("")) / 10


def test_the_package_alone_imports_nothing():
    found = imported("import cigl")
    assert not {"torch", "numpy"} & found


@pytest.mark.parametrize(("library", "extra"), [("transformers", "transformers"), ("lightning", "lightning")])
def test_a_missing_library_is_named(library, extra):
    code = f"import sys; sys.modules[{library!r}] = None; import cigl.integrations.{extra}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: cigl.integrations.{extra} needs ")
    assert last.endswith(f"pip install 'cigl[{extra}]'.")
