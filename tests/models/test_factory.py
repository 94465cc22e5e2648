"""Anyone's own network."""

import sys

import pytest
from torch import nn

import cigl.models
from cigl.common.errors import CiglError

MODULE = """
from torch import nn

def both(classes, shape): return nn.Linear(shape[0], classes)
def keywords(*, shape, classes, width=3): return nn.Linear(shape[0], classes)
def one(num_outputs): return nn.Linear(1, num_outputs)
def named(*, classes): return nn.Linear(2, classes)
def none(): return nn.Linear(8, 8)
def anything(**more): return nn.Linear(more["shape"][0], more["classes"])
def three(a, b, c): return nn.Linear(1, 1)
def number(classes): return 7
def broken(classes): raise RuntimeError("no such layer")
class Own(nn.Module):
    def __init__(self, classes, shape=(1,)):
        super().__init__()
        self.out_features, self.in_features = classes, shape[0]
class Space:
    inner = Own
text = "text"
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text(MODULE)
    (tmp_path / "their_broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)  # found in the current folder, as a script's modules are
    path = list(sys.path)
    yield
    assert sys.path == path
    sys.modules.pop("their_nets", None)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("both", 40, 5),
        ("keywords", 40, 5),
        ("one", 1, 5),
        ("named", 2, 5),
        ("none", 8, 8),
        ("anything", 40, 5),
        ("Own", 40, 5),
        ("Space.inner", 40, 5),
    ],
)
def test_called_with_what_it_takes(name, inside, outside):
    model = cigl.models.build(f"their_nets:{name}", 5, (40,))
    assert isinstance(model, nn.Module)
    assert (model.in_features, model.out_features) == (inside, outside)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("their_nets:three", r"could not make a network: TypeError: it takes \(a, b, c\)"),
        ("their_nets:broken", "RuntimeError: no such layer"),
        ("their_nets:number", "returned int, but must return a torch.nn.Module"),
        ("their_nets:text", "is a str, but must be callable"),
        ("their_nets:nothing", "has no 'nothing'"),
        ("their_broken:x", "can't be imported .*ZeroDivisionError"),
        ("not_there_at_all:x", "can't be imported .*ModuleNotFoundError"),
        (":x", "write package.module:name"),
        ("their_nets:", "write package.module:name"),
    ],
)
def test_failures_are_clear(name, message):
    with pytest.raises(CiglError, match=message):
        cigl.models.build(name, 5, (40,))
