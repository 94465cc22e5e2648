"""What a study is: every combination once, the same after a round trip through YAML, and clear refusals."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import METHODS, SETTING, quick

from cigl import CiglError
from cigl.study.grid import Study, cells


def test_every_combination_once_and_seeds_slowest():
    study = quick(sparsity=(0.8, 0.9), seeds=(4, 2), settings={"a": SETTING, "b": SETTING | {"lr": 0.2}})
    found = [(c.seed, c.setting, c.method, c.sparsity) for c in cells(study)]
    assert found == [
        (seed, setting, method, sparsity)
        for seed in (4, 2)
        for setting in ("a", "b")
        for method in ("rigl", "cigl")
        for sparsity in (0.8, 0.9)
    ]
    assert all(c.config.sparsity == c.sparsity and c.config.seed == c.seed for c in cells(study))


def test_a_methods_own_sparsity_and_keys_win():
    study = quick(methods={"rigl": {"method": "rigl", "sparsity": 0.3, "lr": 0.5}}, sparsity=(0.8, 0.9))
    (cell,) = cells(study)
    assert (cell.sparsity, cell.config.lr, cell.config.train_size) == (0.3, 0.5, 320)


def test_keys_of_all_settings_are_replaced():
    assert {cell.config.lr for cell in cells(quick().with_keys({"lr": 0.7}))} == {0.7}


def test_methods_and_datasets_of_users_own_modules():
    methods = {"mine": {"method": "my_methods:gentle"}, "rigl": {"method": "rigl"}}
    study = quick(methods=methods, settings={"toy": SETTING | {"dataset": "my_data.sets:rings"}}, reference="mine")
    again = Study.of(yaml.safe_load(yaml.safe_dump(study.plain(), sort_keys=False)))
    mine, rigl = cells(again)
    assert (mine.config.method, mine.config.dataset) == ("my_methods:gentle", "my_data.sets:rings")
    assert str(mine) == "mine 50 % toy seed 0"
    assert len(mine.digest) == len(rigl.digest) == 16
    assert mine.digest != rigl.digest


names = st.text("abc", min_size=1, max_size=3)


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.builds(
        dict,
        sparsity=st.lists(st.floats(0, 0.99), min_size=1, max_size=3, unique=True).map(tuple),
        seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3, unique=True).map(tuple),
        settings=st.dictionaries(names, st.fixed_dictionaries({"lr": st.floats(0.01, 1)}), min_size=1, max_size=3),
        masks=st.integers(0, 5),
    )
)
def test_a_study_reads_back_the_same(changes):
    study = quick(**changes)
    again = Study.of(yaml.safe_load(yaml.safe_dump(study.plain(), sort_keys=False)))
    assert again.plain() == study.plain()
    assert [c.digest for c in cells(again)] == [c.digest for c in cells(study)]
    assert len(cells(study)) == 2 * len(study.sparsity) * len(study.seeds) * len(study.settings)


def test_short_forms_of_a_file():
    study = Study.of({"name": "a", "settings": {"toy": SETTING}, "methods": METHODS, "sparsity": 0.5, "seeds": 2})
    assert (study.sparsity, study.seeds) == ((0.5,), (0, 1))


def test_a_part_of_the_grid():
    study = quick(sparsity=(0.8, 0.95), seeds=(0, 1))
    assert len(study.only({"sparsity": ["0.95"], "method": ["cigl"]})) == 2
    assert len(study.only({"sparsity": ["0.8", "0.95"], "method": ["cigl", "rigl"], "seed": ["1"]})) == 4
    assert len(study.only({})) == 8
    with_dense = quick(methods=METHODS | {"dense": {"method": "dense", "sparsity": 0}}, sparsity=(0.8, 0.95))
    with pytest.raises(CiglError, match="--only has method=dense, which no run has with the rest"):
        with_dense.only({"sparsity": ["0.95"], "method": ["cigl", "dense"]})
    with pytest.raises(CiglError, match="unknown method in --only 'cigll': did you mean 'cigl'"):
        study.only({"method": ["cigl", "cigll"]})
    with pytest.raises(CiglError, match="unknown axis in --only 'methods': did you mean 'method'"):
        study.only({"methods": ["cigl"]})
    with pytest.raises(CiglError, match="seed=first: give a number"):
        study.only({"seed": ["first"]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsities": [0.5]}, "unknown key of a study 'sparsities': did you mean 'sparsity'"),
        ({"settings": {}}, "is an empty grid"),
        ({"methods": {}}, "is an empty grid"),
        ({"sparsity": []}, "is an empty grid"),
        ({"seeds": 0}, "is an empty grid"),
        ({"seeds": [0, 1, 0]}, r"seeds \[0, 1, 0\] repeat"),
        ({"seeds": ["a"]}, "give whole numbers"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"sparsity": [0.5, 0.5]}, "sparsities .* repeat"),
        ({"sparsity": [0.5, "0.5"]}, "sparsities .* repeat"),
        ({"methods": {"rigl": {"method": "rigl", "sparsity": [0.5, 0.5]}}}, "sparsities .* repeat"),
        ({"sparsity": [[0.5]]}, r"sparsity is \[0.5\]: give a number"),
        ({"sparsity": ["high"]}, "sparsity is 'high': give a number"),
        ({"sparsity": [1.0]}, "sparsity is 1.0"),
        ({"settings": {"toy": {"learning_rate": 1}}}, "unknown key 'learning_rate'"),
        ({"settings": ["toy"]}, "must be names, each with the keys of a run"),
        ({"methods": {"rigl": "rigl"}}, "must be names, each with the keys of a run"),
        ({"settings": {"cifar/10": SETTING}}, "is named 'cifar/10': leave out the slash"),
        ({"settings": {10: SETTING}}, "settings is named 10: give a string"),
        ({"methods": METHODS | {False: {"method": "set"}}}, "methods is named False: give a string"),
        ({"settings": {"toy": SETTING | {"sparsity": 0.9}}}, "'toy' in settings has sparsity: leave it out"),
        (
            {"methods": METHODS | {"a": {"seed": 3}}},
            "'a' in methods has seed: leave it out, it is the study's seeds that count",
        ),
        ({"about": 5}, "about is 5: give a string"),
        ({"labels": {"rigl": 5}}, "labels must be names"),
        ({"reference": ["rigl"]}, "unknown reference"),
        ({"reference": "rigll"}, "unknown reference 'rigll': did you mean 'rigl'"),
        ({"masks": -1}, "masks is -1"),
        ({"labels": [1]}, "labels must be names"),
        ({"name": None}, "name is None"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(CiglError, match=message):
        Study.of(quick().plain() | changes)


def test_a_file_without_methods():
    with pytest.raises(CiglError, match="the study has no methods"):
        Study.of({"name": "a", "settings": {"toy": SETTING}})
