"""The catalogue, and methods from elsewhere with options of their own."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
from loops import attach, mlp, run, sgd

import cigl
import cigl.sparsify
from cigl.sparsify.methods.catalogue import Method, RigL, options

OWN = """
from dataclasses import dataclass
from typing import Literal
from cigl.sparsify.methods.catalogue import RigL

@dataclass(frozen=True, kw_only=True)
class LeastUsed(RigL):
    name: str = "least-used"
    bonus: float = 2
    rounds: int = 3
    eager: bool = False
    side: Literal["left", "right"] = "left"

    def grow_score(self, layer, step):
        return layer.gradient.abs() + self.bonus * ~layer.explored

ready = LeastUsed(bonus=5.0)
number = 3

def made():
    return LeastUsed(rounds=7)

def fails():
    raise ZeroDivisionError("no method today")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)  # as for models, the current folder is where modules are looked for
    yield "own_methods"
    sys.modules.pop("own_methods", None)


@pytest.mark.parametrize(("name", "bonus", "rounds"), [("LeastUsed", 2, 3), ("ready", 5.0, 3), ("made", 2, 7)])
def test_a_method_by_reference(name, bonus, rounds, own):
    method = cigl.method(f"{own}:{name}")
    assert (method.name, method.bonus, method.rounds) == ("least-used", bonus, rounds)
    assert cigl.method(f"{own}:{name}", bonus=1.5, update_every=7).bonus == 1.5
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, cigl.method(f"{own}:{name}", update_every=3))
    run(model, optimizer, 4)
    assert sparse.explored > sparse.density
    model = mlp()
    sparse = cigl.attach(
        model, sgd(model), f"{own}:{name}", sparsity=0.5, epochs=10, steps_per_epoch=10, update_every=5
    )
    assert (sparse.method.name, sparse.method.update_every) == ("least-used", 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own_methods:nothing", "own_methods has no 'nothing'"),
        ("own_methods:number", "own_methods:number is a int, but must be or return a cigl.Method"),
        ("own_methods:Literal", "own_methods:Literal could not make a method"),
        ("own_methods:fails", "could not make a method: ZeroDivisionError: no method today"),
        ("not_there_at_all:x", "not_there_at_all can't be imported"),
        (":x", "write package.module:name"),
        ("own_methods:", "write package.module:name"),
        ("builtins:dict", "is a dict, but must be or return"),
    ],
)
def test_references_that_lead_nowhere(text, message, own):
    with pytest.raises(cigl.CiglError, match=message) as caught:
        cigl.method(text)
    assert "\n" not in str(caught.value)


def test_the_options_of_a_method():
    listed = options("cigl")
    assert list(listed) == [
        *("update_every", "drop_fraction", "update_until", "random_mask", "average_from", "average_of"),
        *("second_moment", "final_weights", "start_variance"),
    ]
    assert (listed["random_mask"].type, listed["random_mask"].default) == (float, 0.1)
    assert (listed["update_every"].type, listed["drop_fraction"].type) == (int, float)
    assert listed["drop_fraction"].default == 0.3
    assert listed["average_of"].choices == ("Z*W", "p*W")
    assert "random_mask" not in options("rigl")  # it would have no effect there
    assert {"c", "eps"} <= options("dst-ee").keys()
    assert {"cycle_epochs", "cycle_drop", "lr_high", "lr_low"} <= options("sup-tickets").keys()


@pytest.mark.parametrize("name", list(cigl.methods()))
def test_every_option_can_be_set(name):
    method = cigl.method(name)
    for option in options(name).values():
        changed = cigl.method(name, **{option.name: option.default})
        assert changed == method, option.name


@pytest.mark.parametrize(
    ("option", "value", "fits"),
    [
        ("bonus", 1e-3, True),
        ("bonus", 4.0, True),
        ("rounds", 12, True),
        ("eager", True, True),
        ("eager", False, True),
        ("side", "right", True),
        ("random_mask", 0.1, False),
        ("bonus", "much", False),
        ("rounds", 1.5, False),
        ("eager", "perhaps", False),
        ("side", "middle", False),
    ],
)
def test_an_option_of_ones_own(option, value, fits, own):
    with nullcontext() if fits else pytest.raises(cigl.CiglError, match=option):
        assert getattr(cigl.method(f"{own}:LeastUsed", **{option: value}), option) is value


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("dst-ee", "c", "0.1"),
        ("dst-ee", "c", True),
        ("sup-tickets", "cycle_epochs", 1.5),
        ("cigl", "second_moment", "yes"),
        ("cigl", "second_moment", 1),
        ("snfs", "momentum", None),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(name, option, value):
    with pytest.raises(cigl.CiglError, match=f"{option} is {value!r}: give"):
        cigl.method(name, **{option: value})


def test_the_public_names():
    assert "cigl" in cigl.methods()
    assert cigl.Method is Method
    assert issubclass(RigL, cigl.Method)
    model = mlp()
    sparse = cigl.sparsify.attach(model, sgd(model), "static", sparsity=0.5, epochs=1, steps_per_epoch=5)
    assert isinstance(sparse, cigl.Sparsifier)


@pytest.mark.parametrize(
    "first", ["cigl.sparsify.attaching", "cigl.sparsify.methods.catalogue", "cigl.sparsify", "cigl"]
)
def test_whichever_is_imported_first(first):
    names = "callable(cigl.sparsify.attach), m.RigL().name"
    code = f"import {first}; import cigl, cigl.sparsify.methods.catalogue as m; print({names})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "rigl"]
