"""What a study is follows from its runs, whatever it and its methods are called."""

from dataclasses import replace

import pytest
from made_runs import METHODS as MADE
from made_runs import a_study

from cigl.report.evidence.recognise import experiment, kinds, of_kind, relation_to_paper
from cigl.study.catalogue import EXPERIMENTS, METHODS, study

EVERYWHERE = [(name, scale) for name, each in EXPERIMENTS.items() for scale in each.scales]


@pytest.mark.parametrize(("name", "scale"), EVERYWHERE)
def test_the_catalogues_studies_are_known_by_content(name, scale):
    found = study(name, scale)
    assert experiment(replace(found, name="mine", about="", labels={}, seeds=(5,))) == (name, scale)
    assert experiment(found.with_keys({"device": "cuda"})) == (name, scale)
    assert experiment(found.with_keys({"epochs": 3})) is None
    assert experiment(replace(found, sparsity=(*found.sparsity, 0.123))) is None
    assert EXPERIMENTS[name].shows in relation_to_paper(found)
    assert relation_to_paper(found).endswith("in a small setting.") == (scale != "paper")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_name_says_nothing(name):
    assert experiment(a_study(name)) is None
    assert relation_to_paper(a_study(name)) == ""


@pytest.mark.parametrize(("name", "scale"), EVERYWHERE)
def test_the_catalogues_methods_are_known_by_content(name, scale):
    found = study(name, scale)
    wanted = {method: "cigl" if method == "cigl-mask-10" else method for method in found.methods}
    assert kinds(found) == wanted
    renamed = replace(found, methods={f"m-{method}": keys for method, keys in found.methods.items()}, labels={},
                      reference=f"m-{found.reference}")  # fmt: skip
    assert kinds(renamed) == {f"m-{method}": kind for method, kind in wanted.items()}


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"method": "rigl", "label_smoothing": 0.05}, "rigl-ls"),
        ({"method": "cigl", "random_mask": 0.3}, "cigl"),
        ({"method": "cigl", "average_of": "p*W"}, "cigl-pw"),
        ({"method": "cigl", "average_of": "p*W", "mixup": 0.2}, None),
        ({"method": "cigl", "lr": 0.3}, None),
        ({"method": "cigl", "mixup": 0.0}, "cigl"),
        ({"method": "my_methods:cigl"}, None),
    ],
)
def test_kinds(keys, kind):
    assert kinds(replace(a_study(), methods={"rigl": MADE["rigl"], "own": keys})).get("own") == kind


def test_what_all_methods_of_a_setting_share_makes_no_other_method():
    smooth = a_study().with_keys({"label_smoothing": 0.1})
    assert kinds(smooth) == {"dense": "dense", "rigl": "rigl", "cigl": "cigl"}


def test_of_several_the_one_of_that_name():
    assert of_kind(study("main", "small-conv"), "cigl") == ["cigl"]
    masks = {name: {"method": "cigl", "random_mask": share} for name, share in (("a", 0.1), ("b", 0.2))}
    assert of_kind(replace(a_study(), methods={"rigl": MADE["rigl"], **masks}), "cigl") == ["a", "b"]
    assert of_kind(a_study(), "set") == []
    assert set(METHODS) > set(kinds(study("ablation")).values())
