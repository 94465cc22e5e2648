import pytest

from cigl.report.evidence import paper
from cigl.study.catalogue import EXPERIMENTS, METHODS, study
from cigl.study.grid import cells
from cigl.train.config import resolve

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
    found = paper.find(metric, (setting, method), sparsity, ALL)
    assert found.mean == pytest.approx(mean)
    assert found.std == (None if std is None else pytest.approx(std))


@pytest.mark.parametrize(
    "tables", [paper.TABLES["ece"], paper.TABLES["accuracy"], ["wma_delta"], ["sup_tickets_delta"]]
)
def test_each_number_is_in_one_table_only(tables):
    keys = [(p.metric, p.setting, p.method, p.sparsity) for p in paper.printed() if p.table in tables]
    assert keys
    assert len(keys) == len(set(keys))


def test_every_table_of_the_paper_is_used():
    assert {table for tables in paper.TABLES.values() for table in tables} == set(ALL)


def test_every_number_stands_beside_a_method_of_the_catalogue():
    assert {one.method for one in paper.printed()} <= METHODS.keys()


def test_what_is_not_there():
    assert paper.find("nll", (resnet, "cigl"), 0.8, ALL) is None
    assert paper.find("ece", (resnet, "cigl"), 0.8, ()) is None


def test_slips_and_guesses_are_noted():
    repeated = [p.mean for p in paper.printed() if p.slip and p.table == "sup_tickets_delta"]
    original = [p.mean for p in paper.printed() if p.table == "wma_delta" and p.method == "cigl" and p.setting == wrn]
    assert repeated == original[:3]
    assert {p.table for p in paper.printed() if p.slip} == {"sup_tickets_delta", "set_ece", "intro"}


def test_the_papers_numbers_stand_beside_its_own_settings():
    wanted = {
        "cifar10-resnet50": resnet,
        "cifar10-wrn-22-2": wrn,
        "cifar100-resnet50": paper.Setting("cifar100", "resnet50"),
    }
    for preset, setting in wanted.items():
        for method in ("rigl", "cigl"):
            given = {**METHODS[method][1], "seed": 4, "sparsity": 0.9, "device": "cuda", "validation": 0.1}
            assert paper.place(resolve(given, preset=preset)) == (setting, method)


@pytest.mark.parametrize("scale", ["small", "small-conv"])
def test_and_beside_no_other(scale):
    for name in [name for name, experiment in EXPERIMENTS.items() if scale in experiment.scales]:
        assert not any(paper.place(cell.config) for cell in cells(study(name, scale)))
    config = resolve({"method": "rigl"}, preset="cifar10-resnet50")
    changes = {"epochs": 20}, {"train_size": 5_000}, {"lr": 0.2}, {"label_smoothing": 0.1}, {"model": "wrn-10-2"}
    for change in (*changes, {"optimizer": "adam"}, {"method": "dense"}, {"temperature": "pilot"}):
        assert paper.place(config.changed(**change)) is None
