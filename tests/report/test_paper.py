import pytest

from cigl.study import paper
from cigl.study.catalogue import METHODS
from cigl.study.contents import contents
from cigl.train.config import PRESETS, resolve

resnet, wrn = paper.Setting("cifar10", "resnet50"), paper.Setting("cifar10", "wrn-22-2")
ALL = tuple({one.table for one in paper.printed()})


@pytest.mark.parametrize(
    ("metric", "setting", "method", "sparsity", "mean", "std"),
    [
        ("accuracy", resnet, "rigl", 0.8, 0.9402, 0.00115),
        ("ece", resnet, "cigl", 0.99, 0.0298, 0.001),
        ("ece", wrn, "rigl-mcdp", 0.99, 0.1502, 0.002),
        ("accuracy", wrn, "rigl-wdp", 0.95, 0.8966, 0.00183),
        ("ece", paper.Setting("cifar100", "resnet50"), "set", 0.5, 0.0931, None),
    ],
)
def test_numbers_of_the_paper(metric, setting, method, sparsity, mean, std):
    found = paper.find(metric, setting, method, sparsity, ALL)
    assert found.mean == pytest.approx(mean)
    assert found.std == (None if std is None else pytest.approx(std))


@pytest.mark.parametrize("study", ["main", "dropout", "set", "sup-tickets", "wma-effect", "my own"])
def test_a_study_finds_each_number_in_one_table_only(study):
    tables = contents(study).paper
    keys = [(p.metric, p.setting, p.method, p.sparsity) for p in paper.printed() if p.table in tables]
    assert len(keys) == len(set(keys))


def test_every_number_stands_beside_a_method_of_the_catalogue():
    assert {one.method for one in paper.printed()} <= METHODS.keys()


def test_what_is_not_there():
    assert paper.find("nll", resnet, "cigl", 0.8, ALL) is None
    assert paper.find("ece", resnet, "cigl", 0.8, ()) is None


def test_slips_and_guesses_are_noted():
    repeated = [p.mean for p in paper.printed() if p.slip and p.table == "sup_tickets_delta"]
    original = [p.mean for p in paper.printed() if p.table == "wma_delta" and p.method == "cigl" and p.setting == wrn]
    assert repeated == original[:3]
    assert {p.table for p in paper.printed() if p.slip} == {"sup_tickets_delta", "set_ece", "intro"}


def test_every_preset_has_a_setting_beside_it():
    for preset in PRESETS:
        config = resolve(preset=preset)
        assert paper.nearest(config) in {p.setting for p in paper.printed()}
    assert paper.is_same(resolve(preset="cifar10-wrn-22-2"))
    assert not paper.is_same(resolve(preset="fashion-mnist-mlp"))
