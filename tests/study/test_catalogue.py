"""The paper's experiments: all there, at every scale, each of them a grid of valid runs on one split."""

import pytest

import cigl
from cigl import CiglError
from cigl.study.catalogue import COMPANIONS, EXPERIMENTS, MASKED, METHODS, SCALES, names, study
from cigl.study.grid import cells
from cigl.train.trainer import method_of

EVERYWHERE = [(name, scale) for name, experiment in EXPERIMENTS.items() for scale in experiment.scales]


def test_the_ten_studies():
    wanted = "main dropout calibrators ablation set sup-tickets wma-effect double-descent mask-correlation imagenet"
    assert list(names()) == wanted.split()


def test_every_study_is_there_at_every_scale():
    assert set(EVERYWHERE) == {(name, scale) for name in EXPERIMENTS for scale in SCALES} - {("imagenet", "small-conv")}


@pytest.mark.parametrize(("name", "scale"), EVERYWHERE)
def test_every_study_is_a_grid_of_valid_runs(name, scale):
    found = study(name, scale)
    assert found.seeds == (0, 1, 2)
    for cell in cells(found):
        method_of(cell.config)  # a key that the method has no use for would be refused
        assert cell.config.validation == 0.1  # all methods train on the same split
        assert cell.config.temperature in ("holdout", "pilot")
    assert set(found.labels) == set(found.methods)


@pytest.mark.parametrize(("name", "scale"), EVERYWHERE)
def test_the_companions_run_where_methods_are_compared(name, scale):
    methods = set(study(name, scale).methods)
    if name in ("wma-effect", "double-descent", "mask-correlation"):
        assert not methods & {"dense", "cigl-pw"}
        return
    missing = set(COMPANIONS) - methods
    assert missing == ({"rigl-bn"} if scale == "small" and name != "imagenet" else set())


def test_methods_with_a_random_mask_are_known():
    has_mask = {name for name, (_, keys) in METHODS.items() if cigl.method(keys["method"]).random_mask}
    assert has_mask == MASKED


def test_the_size_of_the_main_study():
    assert len(cells(study("main"))) == 3 * (1 + 6 * 4)
    assert {cell.setting for cell in cells(study("main", "paper"))} == {
        "cifar10-resnet50", "cifar10-wrn-22-2", "cifar100-resnet50",
    }  # fmt: skip


def test_unknown_names():
    with pytest.raises(CiglError, match="unknown study 'mian': did you mean 'main'"):
        study("mian")
    with pytest.raises(CiglError, match="unknown scale 'smal': did you mean 'small'"):
        study("main", "smal")
    with pytest.raises(CiglError, match="scales small and paper"):
        study("imagenet", "small-conv")
