import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cigl import CiglError
from cigl.train.config import KEYS, PRESETS, Config, read_keys, resolve


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("preset: fashion-mnist-mlp\nepochs: 7\nseed: 1\n")
    config = resolve({"seed": 2}, file)
    assert (config.seed, config.epochs, config.batch_size, config.momentum) == (2, 7, 128, 0.9)


def test_a_preset_flag_wins_over_the_files():
    assert resolve(preset="cifar10-wrn-22-2").model == "wrn-22-2"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    assert isinstance(resolve(preset=name), Config)


def test_the_papers_settings():
    for name in ("cifar10-resnet50", "cifar10-wrn-22-2", "cifar100-resnet50"):
        config = resolve(preset=name)
        assert (config.epochs, config.batch_size, config.optimizer, config.momentum) == (250, 128, "sgd", 0.9)
        assert config.schedule == "piecewise"
    assert (resolve(preset="imagenet-resnet50").epochs, resolve(preset="imagenet-resnet50").batch_size) == (100, 64)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sparcity": 0.5}, "unknown key 'sparcity': did you mean 'sparsity'"),
        ({"sparsity": 1.0}, r"sparsity is 1.0: give a share from 0 to below 1\.$"),
        ({"sparsity": 95}, r"give a share from 0 to below 1; did you mean 0\.95\?$"),
        ({"sparsity": "high"}, "sparsity is 'high': give a number"),
        ({"epochs": 2.5}, "epochs is 2.5: give a whole number"),
        ({"epochs": 0}, "epochs is 0: it must be above 0"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg': did you mean 'sgd'"),
        ({"bf16": "yes"}, "bf16 is 'yes': give true or false"),
        ({"milestones": [0.7, 0.2]}, "give rising shares"),
        ({"milestones": 0.5}, "give a list of numbers"),
        ({"mixup": -1}, "can't be negative"),
        ({"lr": float("nan")}, "lr is nan: give a number"),
        ({"lr": "fast"}, "lr is 'fast': give a number"),
        ({"momentum": -1.0}, "momentum is -1.0"),
        ({"clip": 0.0}, "clip is 0.0: give a gradient norm above 0"),
        ({"epochs": 10**21}, "give at most a million"),
        ({"seed": 10**20}, "from 0 to below"),
        ({"seed": -1}, "seed is -1: give a whole number from 0"),
    ],
)
def test_bad_values(flags, message):
    with pytest.raises(CiglError, match=message):
        resolve(flags)


@pytest.mark.parametrize("content", ["- 1\n- 2\n", "a: [", "\x00", "seed: 2020-13-45", "[" * 3000])
def test_bad_files(content, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(CiglError, match="configuration"):
        resolve(file=file)


@pytest.mark.parametrize(
    "content", ["seed: 1\nlr: 0.1\nseed: 2\n", "a: {b: 1, seed: 1,\n c: 3, seed: 2}", "[{x: 1},\n{seed: 1, seed: 1}]"]
)
def test_a_key_that_stands_twice(content, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(CiglError, match=r"the key 'seed' twice, the second time in line [23]: keep one"):
        read_keys(file)


def test_anchors_may_be_merged_and_changed(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("a: &a {seed: 1, lr: 1}\nb: &b {<<: *a, seed: 2}\nc: {<<: *b, seed: 3}\nd: [*a, *b]\n")
    assert read_keys(file)["c"] == {"seed": 3, "lr": 1}


def test_missing_file_and_unknown_preset(tmp_path):
    with pytest.raises(CiglError, match=r"there is no file .*none\.yaml: give a YAML file with keys and values"):
        resolve(file=tmp_path / "none.yaml")
    with pytest.raises(CiglError, match="there is no file"):
        resolve(file=tmp_path)
    with pytest.raises(CiglError, match="unknown preset 'cifar10': did you mean"):
        resolve(preset="cifar10")


def test_numbers_as_yaml_reads_them(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("lr: 1e-3\npreset: mnist1d-mlp\n")
    assert resolve(file=file).lr == 0.001
    file.write_text("preset: [a]\n")
    with pytest.raises(CiglError, match="unknown preset"):
        resolve(file=file)


def test_an_empty_file_is_the_defaults(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("")
    assert resolve(file=file) == Config()


values = st.fixed_dictionaries(
    {},
    optional={
        "sparsity": st.floats(0, 0.99),
        "epochs": st.integers(1, 500),
        "milestones": st.lists(st.floats(0.01, 0.99), max_size=3).map(sorted),
        "random_mask": st.none() | st.floats(0, 0.5),
        "bf16": st.booleans(),
        "average_of": st.sampled_from([None, "Z*W", "p*W"]),
        "options": st.dictionaries(st.sampled_from("abc"), st.booleans() | st.integers(0, 9) | st.floats(0, 1)),
    },
)


@given(values)
def test_what_is_saved_reads_back_the_same(flags):
    config = resolve(flags)
    again = Config.of(yaml.safe_load(yaml.safe_dump(config.plain())))
    assert again == config
    assert again.digest() == config.digest()


def test_the_digest_tells_configurations_apart():
    base = Config()
    digests = {base.digest(), base.changed(seed=1).digest(), base.changed(lr=0.2).digest()}
    assert len(digests) == 3
    assert base.changed(seed=1).digest(without=("seed",)) == base.digest(without=("seed",))
    newer = {"options", "kernels", "redraw", "subset", "image_size", "decay_biases", "val_split", "pretrained"}
    assert set(base.plain()) == set(KEYS) - newer


def test_digests_stay_what_they_were():
    """They name the folders of runs: these three were computed before there were options."""
    assert Config().digest() == "0ae56bc60a41f146"
    preset = resolve({"seed": 3, "method": "rigl"}, preset="cifar10-wrn-22-2")
    assert preset.digest() == "0315988dbbf3d1f8"
    many = Config(average_of="p*W", temperature="pilot", random_mask=0.05, milestones=[0.5])
    assert many.digest() == "8ff8cb477023725e"
    assert "options" not in Config().plain()
    assert Config(options={}).digest() == Config().digest()


def test_options_of_a_method(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("method: dst-ee\noptions: {eps: 2.0, c: 1e-3}\n")
    config = resolve(file=file)
    assert dict(config.options) == {"c": 0.001, "eps": 2.0}
    assert config == Config(method="dst-ee", options={"c": 0.001, "eps": 2.0})
    assert config.digest() != config.changed(options={}).digest()
    assert config.changed(seed=1).options == config.options
    assert config.plain()["options"] == {"c": 0.001, "eps": 2.0}
    assert len({config, config.changed()}) == 1  # configurations are keys of sets


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (3, "options is 3: give names and values"),
        (("c",), "options is"),
        ([1], "options is .* give names and values"),
        ({"random_mask": 0.1}, "random_mask is a key of its own"),
        ({"c": None}, "option c is None: give a number"),
        ({"c": float("nan")}, "option c is nan: give a number"),
        ({3: 1}, "option 3 is 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(CiglError, match=message):
        Config(options=options)


def test_what_is_held_out():
    assert Config().held_out == 0
    assert Config(temperature="holdout").held_out == 0.1
    assert Config(temperature="holdout", validation=0.2).held_out == 0.2
    assert Config(temperature="pilot").held_out == 0
    assert Config(temperature="pilot", validation=0.2).held_out == 0.2


def test_a_preset_takes_the_first_images_and_a_number_of_ones_own_draws_them():
    """Results that are committed stay what they were."""
    preset = resolve(preset="fashion-mnist-mlp")
    assert (preset.train_size, preset.subset) == (10_000, "first")
    assert "subset" not in preset.plain()
    assert resolve({"train_size": 500}, preset="fashion-mnist-mlp").subset == "stratified"
    assert resolve({"train_size": 500}).plain()["subset"] == "stratified"
    assert Config(subset="first") == Config()


def test_a_configuration_of_an_earlier_version_means_the_first_examples(tmp_path):
    old = Config(train_size=640, subset="first").plain()
    assert Config.of(old).subset == "first"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    assert resolve(file=tmp_path / "config.yaml").subset == "first"
    (tmp_path / "mine.yaml").write_text("train_size: 640\n")
    assert resolve(file=tmp_path / "mine.yaml").subset == "stratified"


@pytest.mark.parametrize("size", [7, 4097])
def test_an_image_size_that_can_t_be(size):
    with pytest.raises(CiglError, match="from 8 to 4096"):
        Config(image_size=size)
