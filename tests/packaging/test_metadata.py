"""What the package says that it requires is what it imports, and every sentence that names an extra is right."""

import ast
import re
import subprocess
import sys
from email import message_from_bytes
from importlib.metadata import packages_distributions

import pytest
from build_distributions import ROOT, copy_sources
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cigl
from cigl.common import tensors
from cigl.common.errors import CiglError
from cigl.study import catalogue
from cigl.study.store import StudyFolder
from cigl.train.config import read_keys, resolve
from cigl.train.folder.run_folder import RunFolder

# Named in an extra and imported by no module of ours, but by a library in a call of ours, or by the user.
INDIRECT = {
    "accelerate": "the user's own loop, and Trainer of transformers",
    "onnx": "torch.onnx.export",
    "tensorboard": "torch.utils.tensorboard",
}
FOR_DEVELOPERS = {"dev", "docs"}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    folder = copy_sources(tmp_path_factory.mktemp("sources"))
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as f; print(f('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def message(metadata):
    return message_from_bytes((metadata / "METADATA").read_bytes())


@pytest.fixture(scope="module")
def required(message):
    """Each extra with the names of its packages, those of extras that it names included; "" is the core."""
    requirements = [Requirement(text) for text in message.get_all("Requires-Dist")]

    def names(extra):
        mine = [r for r in requirements if (r.marker is None) == (extra == "")]
        mine = [r for r in mine if r.marker is None or r.marker.evaluate({"extra": extra})]
        others = [names(other) for r in mine if r.name == "cigl" for other in r.extras]
        return {canonicalize_name(r.name) for r in mine if r.name != "cigl"}.union(*others)

    return {extra: names(extra) for extra in ("", *message.get_all("Provides-Extra"))}


def imported():
    """The distributions that modules of the package import, at the top or in a function."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    known = packages_distributions()
    others = found - sys.stdlib_module_names - {"cigl"}
    parts = {name: known.get(name, [name]) for name in others}  # Python 3.10 knows some only
    return {canonicalize_name(name if name in which else which[0]) for name, which in parts.items()}


def test_the_version_has_one_source(message):
    assert message["Version"] == cigl.__version__
    assert not re.search("^version = ", (ROOT / "pyproject.toml").read_text().partition("[tool.")[0], re.MULTILINE)


def test_the_core_is_torch_and_numpy(required):
    assert required[""] == {"torch", "numpy"}


def test_all_that_is_imported_is_in_the_core_or_an_extra(required):
    covered = set().union(*(names for extra, names in required.items() if extra not in FOR_DEVELOPERS))
    assert imported() <= covered


def test_no_extra_names_a_package_that_nobody_imports(required):
    named = set().union(*(names for extra, names in required.items() if extra not in FOR_DEVELOPERS))
    assert named - imported() <= set(INDIRECT)


def test_all_means_all(required):
    every = set().union(*(names for extra, names in required.items() if extra not in FOR_DEVELOPERS | {""}))
    assert required["all"] == every


def test_sentences_name_extras_that_exist(required):
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py"), *(ROOT / "src").rglob("*.py")]
    extras = set(required)
    for path in files:
        for named in re.findall(r"cigl\[([a-z, ]+)\]", path.read_text("utf-8")):
            assert set(re.split(", ?", named)) <= extras, path


def test_the_page_on_installation_lists_the_extras(required):
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", (ROOT / "docs/installation.md").read_text(), re.MULTILINE))
    assert set(rows) == set(required) - {""}
    own = {"cli": required["cli"] - required["data"] - required["plot"] | {"rich"}}
    for extra in set(rows) - {"all"} - FOR_DEVELOPERS:
        named = {canonicalize_name(name) for name in re.split(", (?:and )?", rows[extra].lower())}
        assert own.get(extra, required[extra]) <= named, extra


# The console script


def test_the_console_script_is_there(metadata):
    assert "cigl = cigl.__main__:main" in (metadata / "entry_points.txt").read_text()


def without(library, code):
    code = f"import sys; sys.modules[{library!r}] = None\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_command_line_without_its_extra():
    done = without("typer", "from cigl.__main__ import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the command line needs typer, which is not installed: pip install 'cigl[cli]'.\n"


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("yaml", lambda folder: read_keys(folder / "config.yaml")),
        ("yaml", lambda folder: RunFolder(folder).write_config(resolve())),
        ("yaml", lambda folder: StudyFolder(folder / "study").create(catalogue.study("main", "small"))),
        ("safetensors", lambda folder: tensors.load(folder / "a")),
        ("safetensors", lambda folder: tensors.save(folder / "a", {})),
    ],
)
def test_runs_and_studies_without_their_extra(library, use, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.torch", None)
    with pytest.raises(CiglError, match=rf"need {library}, which is not installed: pip install 'cigl\[cli\]'\."):
        use(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["-m", "cigl"], ["-c", "from cigl.__main__ import main; main()"]])
def test_version(command):
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"cigl {cigl.__version__}\n"


def test_a_fault_of_our_own_is_not_called_a_missing_library():
    done = without("cigl.cli.train", "from cigl.__main__ import main; main()")
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr
