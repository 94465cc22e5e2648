"""A run whose random mask follows held-out examples: they are held out, observed, logged, and give the temperature."""

import json
import warnings

import pytest
import torch

import cigl
from cigl.common import tensors
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import Execution, complete, train
from cigl.train.trainer import Splits, Trainer

KEYS = {
    "method": "cigl-auto", "train_size": 640, "epochs": 8, "update_every": 5, "sparsity": 0.5,
    "optimizer": "adam", "lr": 0.01, "schedule": "constant", "options": {"patience": 0, "gain": 30.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    return folder, train(Config(**KEYS), folder)


def test_a_tenth_is_held_out_and_enough_is_enough():
    splits = Splits.of(Config(**KEYS))
    assert (len(splits.train), len(splits.validation)) == (576, 64)
    assert Splits.of(Config(**KEYS | {"method": "cigl", "options": {}})).validation is None
    assert len(Splits.of(Config(**KEYS | {"validation": 0.25})).validation) == 160


def test_one_training_ends_calibrated(finished):
    folder, result = finished
    assert result["temperature"] > 0
    assert set(result["test"]) == {"report", "report-temperature"}
    assert json.loads((folder / "data.json").read_text())["validation"] == 64
    rows = RunFolder(folder).read_metrics()
    assert all(-1 < row["gap"] < 1 for row in rows)
    assert rows[0]["strength"] == 0
    assert "mask_rate" in rows[0]


def test_the_validation_numbers_are_those_of_the_network_as_it_would_be_returned(finished):
    folder, _ = finished
    config = Config(**KEYS)
    trainer = Trainer(config, Splits.of(config))
    while trainer.epoch < config.epochs:
        for _ in trainer.steps():
            pass
        network = trainer.sparse.preview()
        row = trainer.finish_epoch()
    logits, labels = trainer.predict(network, "validation")
    gap = float((logits.double().softmax(1).amax(1) - (logits.argmax(1) == labels).double()).mean())
    assert row["gap"] == pytest.approx(gap)
    assert row["gap"] == RunFolder(folder).read_metrics()[-1]["gap"]
    assert row["validation_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
    assert trainer.sparse.controller.strength > 0


def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bits(finished, tmp_path):
    folder, _ = finished

    class Stop(Exception):
        pass

    for number in (9, 9 * 4, 9 * 4 + 5):
        count = 0

        def stop(trainer, row, at=number):
            nonlocal count
            count += row is None
            if count == at:
                raise Stop

        out = tmp_path / str(number)
        with pytest.raises(Stop):
            complete(Config(**KEYS), out, Execution(progress=stop, checkpoint_minutes=1e-9))
        complete(Config(**KEYS), out)
        one, other = (tensors.load(path / "model.safetensors") for path in (folder, out))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one if isinstance(one[name], torch.Tensor))
        assert RunFolder(out).read_metrics()[-1]["gap"] == RunFolder(folder).read_metrics()[-1]["gap"]


def test_each_epoch_says_how_strong_the_mask_is(tmp_path, capsys):
    from cigl.train.progress import progress_bar

    with warnings.catch_warnings(), progress_bar() as progress:
        warnings.simplefilter("ignore", cigl.CiglWarning)
        train(Config(**KEYS | {"epochs": 2}), tmp_path / "a", progress=progress)
    line = capsys.readouterr().err.splitlines()[0]
    assert ", mask 0 %, " in line
    assert "confiden" in line
