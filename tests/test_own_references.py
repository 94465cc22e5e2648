"""`package.module:name`: anyone's own model, dataset and method, as the docs have them."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

import cigl
from cigl import CiglError
from cigl.cli import app
from cigl.common.references import load_reference
from cigl.study.store import StudyFolder

DOCS = Path(__file__).parents[1] / "docs"
QUICK = {"dataset": "toy:blobs", "model": "mlp-16", "epochs": 3, "batch_size": 32, "update_every": 4}
MODULE = """
import torch
def floats(): return torch.ones(4, 2), torch.ones(4), torch.ones(2, 2), torch.ones(2)
def short(): return torch.ones(4, 2), torch.ones(3).long(), torch.ones(2, 2), torch.ones(2).long()
def three(): return 1, 2, 3
def shapes(): return torch.ones(4, 2), torch.ones(4).long(), torch.ones(2, 3), torch.ones(2).long()
def texts(): return [["a"]], [0], [["b"]], [0]
def infinite(): return torch.full((4, 2), torch.inf), torch.ones(4).long(), torch.ones(2, 2), torch.ones(2).long()
def broken(): raise RuntimeError("two\\nlines")
def source():
    import cigl.data
    return cigl.data.from_tensors([[0.0], [1.0]], [0, 1], [[2.0]], [1], name="mine")
number = 3
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path, monkeypatch):
    """The modules that the docs show, in the current folder."""
    for page in ("data.md", "command-line.md"):
        for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (DOCS / page).read_text(), re.S):
            (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "their_data.py").write_text(MODULE)
    (tmp_path / "failing.py").write_text("raise ValueError('two\\nlines')")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in ("toy", "mine", "their_data", "failing"):
        sys.modules.pop(name, None)


def test_the_docs_dataset():
    source = cigl.data.open("toy:blobs")
    assert (source.name, source.classes, source.shape) == ("toy:blobs", 3, (8,))
    assert (len(source.train), len(source.test)) == (800, 400)
    x, y = next(source.train.batches(10))
    assert (x.dtype, y.dtype, x.shape) == (torch.float32, torch.int64, (10, 8))
    assert cigl.data.get("toy:blobs").is_dir()


def test_a_function_may_return_a_source():
    assert cigl.data.open("their_data:source").name == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("floats", "training labels of their_data:floats must be whole numbers from 0"),
        ("short", r"inputs \(examples, ...\) and a label for each, not \(4, 2\) and \(3,\)"),
        ("three", "returned tuple, but must return"),
        ("shapes", r"training inputs of shape \(2,\) and test inputs of shape \(3,\)"),
        ("texts", "must be tensors or arrays of numbers"),
        ("infinite", "have NaN or infinity"),
        ("broken", "could not make a dataset: RuntimeError: two lines$"),
        ("number", "is a int, but must be callable"),
        ("missing", "has no 'missing'"),
    ],
)
def test_datasets_that_are_none(name, message):
    with pytest.raises(CiglError, match=message):
        cigl.data.open(f"their_data:{name}")


def test_references_that_lead_nowhere():
    for text, message in (
        ("failing:x", "failing can't be imported for failing:x: ValueError: two lines$"),
        ("nowhere:x", "nowhere can't be imported"),
        (":x", "':x' refers to no dataset: write package.module:name"),
        ("toy:", "refers to no dataset"),
        ("toy:blobs.inner", "toy has no 'blobs.inner'"),
    ):
        with pytest.raises(CiglError, match=message):
            load_reference(text, "dataset")


def run(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def flags(**keys):
    return [part for name, value in keys.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def test_train_on_ones_own_data(tmp_path):
    found = run("train", *flags(**QUICK, out=tmp_path / "a", method="rigl"))
    assert found["test"]["report"]["accuracy"]["value"] > 0.7
    assert run("export", str(tmp_path / "a"), str(tmp_path / "model.cigl"))["about"]["shape"] == [8]


def test_train_with_ones_own_method_and_its_option(tmp_path):
    found = run("train", *flags(**QUICK, out=tmp_path / "a", method="mine:Returning", option="bonus=0.8"))
    assert found["config"]["options"] == {"bonus": 0.8}
    again = run("train", *flags(config=tmp_path / "a" / "config.yaml", out=tmp_path / "b"))
    assert again["test"] == found["test"]
    plain = run("train", *flags(**QUICK, out=tmp_path / "c", method="rigl"))
    assert plain["test"] != found["test"]


def test_a_study_of_ones_own_data_method_and_options(tmp_path):
    study = {
        "name": "own",
        "settings": {"blobs": QUICK},
        "methods": {
            "rigl": {"method": "rigl"},
            "ee": {"method": "dst-ee", "options": {"c": 0.5}},
            "mine": {"method": "mine:Returning", "options": {"bonus": 2.0}},
        },
        "sparsity": 0.8,
        "seeds": 1,
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(study))
    run("study", "run", "own.yaml", "--out", "out", "--jobs", "1")
    found = StudyFolder(tmp_path / "out").find()
    assert len(found.finished) == 3
    assert {each.cell.method: each.result["config"].get("options") for each in found.finished} == {
        "rigl": None, "ee": {"c": 0.5}, "mine": {"bonus": 2.0},
    }  # fmt: skip
