"""The wheel and the source distribution, installed where there is no compiler and nothing but what they require.

CIGL_DIST names a folder where they were built already (`make wheel`).
"""

import os
import re
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from build_distributions import ROOT, build
from environment import Environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

import cigl

pytestmark = pytest.mark.slow
CORE = ["torch", "numpy"]

TRAIN_SAVE_LOAD = """
import sys, torch, cigl
from cigl.runtime.program import library
assert not {"typer", "yaml", "rich", "matplotlib"} & set(sys.modules)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sparse = cigl.attach(model, optimizer, "rigl", sparsity=0.95, epochs=2, steps_per_epoch=4)
x, y = torch.randn(32, 64), torch.randint(10, (32,))
for _ in range(8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
final = sparse.finalize().eval()
assert cigl.evaluate(final, [(x, y)]).n == 32
cigl.save(final, "model.cigl")
with torch.no_grad():
    torch.testing.assert_close(cigl.load("model.cigl")(x), final(x), rtol=1e-4, atol=1e-5)
print(cigl.__version__, library.reason() or library.isa())
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    if folder := os.environ.get("CIGL_DIST"):
        return Path(folder).absolute()
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    [file] = dist.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def sdist(dist):
    [file] = dist.glob("*.tar.gz")
    return file


def test_one_wheel_for_every_python(wheel, sdist):
    name, version, _, [tag] = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("cigl", cigl.__version__)
    assert (tag.interpreter, tag.abi) == ("py3", "none")
    assert re.match("manylinux|macosx|win", tag.platform), "the platform has a tag that package indexes accept"
    assert sdist.name == f"cigl-{cigl.__version__}.tar.gz"


def test_what_the_wheel_holds(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name and name[-1] != "/"}
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "cigl").rglob("*.py")}
    assets = {f"cigl/report/assets/{path.name}" for path in (ROOT / "src/cigl/report/assets").iterdir()}
    print(*sorted(names - here), sep="\n")
    assert names == here | assets | {"cigl/py.typed", "cigl/runtime/program/_kernels.so"}


def test_what_the_source_distribution_holds(sdist):
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    kernels = {str(path.relative_to(ROOT)) for path in (ROOT / "src/cigl/runtime/program/kernels").iterdir()}
    assert kernels | {"LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".so", ".o")) or name.startswith("tests/")]


def test_the_core_works_without_a_compiler_or_an_extra(wheel, tmp_path):
    environment = Environment(tmp_path / "core", CORE)
    environment.install(str(wheel))
    version, kernels = environment.python(TRAIN_SAVE_LOAD).split()
    assert version == cigl.__version__
    assert kernels in ("portable", "avx2", "avx512"), "the kernels that are in the wheel are used"
    bare = environment.run("cigl")
    assert bare.returncode == 1
    assert bare.stderr == "error: the command line needs typer, which is not installed: pip install 'cigl[cli]'.\n"


def test_the_command_line_works_with_its_extra(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as file:
        [metadata] = [message_from_bytes(file.read(name)) for name in file.namelist() if name.endswith("/METADATA")]
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    extras, names = {"cli"}, set()
    for _ in required:  # extras may name extras
        chosen = [r for r in required if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
        extras |= {extra for r in chosen if r.name == "cigl" for extra in r.extras}
        names = {canonicalize_name(r.name) for r in chosen} - {"cigl"}
    environment = Environment(tmp_path / "cli", names)
    environment.install(f"cigl[cli] @ {wheel.as_uri()}")
    assert environment.run("cigl", "--version").stdout == f"cigl {cigl.__version__}\n"
    for command in (
        "train --epochs 1 --out run",
        "evaluate run",
        "export run model.cigl",
        "bench model.cigl --batch 1",
    ):
        done = environment.run("cigl", *command.split(), cwd=tmp_path)
        assert done.returncode == 0, f"cigl {command}: {done.stderr}"


def test_the_source_distribution_installs_without_a_compiler(sdist, tmp_path):
    environment = Environment(tmp_path / "plain", [*CORE, "setuptools"])
    environment.install("--no-build-isolation", str(sdist))
    said = environment.python(TRAIN_SAVE_LOAD)
    assert "cigl was installed without its sparse kernels" in said
    assert "install a C++ compiler" in said
