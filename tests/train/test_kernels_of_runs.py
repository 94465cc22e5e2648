"""--kernels in runs: recorded, resumed with others, and the same results."""

import json
import warnings

import pytest
import torch
from typer.testing import CliRunner

from cigl import CiglError
from cigl.cli import app
from cigl.common import tensors
from cigl.runtime.program import library
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import resume, train
from cigl.train.signals import Stopped

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="no kernels"),
    pytest.mark.filterwarnings("ignore:.*snapshots will be averaged"),
]
SMALL = {"train_size": 640, "epochs": 5, "batch_size": 64, "update_every": 5, "average_from": 0.6, "update_until": 0.5}


def weights(folder):
    return tensors.load(folder / "model.safetensors")


def stop_at(step):
    def progress(trainer, row):
        if trainer.step == step:
            raise KeyboardInterrupt

    return progress


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, masked and sparse."""
    folder = tmp_path_factory.mktemp("runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            kind: (folder / kind, train(Config(**SMALL, kernels=kind), folder / kind)) for kind in ("masked", "sparse")
        }


def test_a_run_records_what_was_asked_and_used(runs):
    for kind, (folder, result) in runs.items():
        assert result["kernels"]["asked"] == kind
        assert set(result["kernels"]["layers"].values()) == {kind}
        assert json.loads((folder / "result.json").read_text())["kernels"] == result["kernels"]
        assert RunFolder(folder).read_config().kernels == kind


def test_results_are_those_of_masked_training(runs):
    (masked, one), (sparse, two) = runs["masked"], runs["sparse"]
    accuracies = [result["test"]["report"]["accuracy"]["value"] for result in (one, two)]
    assert abs(accuracies[0] - accuracies[1]) < 0.02
    assert one["density"] == two["density"]
    assert weights(masked).keys() == weights(sparse).keys()


def test_the_default_is_not_written_so_that_digests_stay():
    assert "kernels" not in Config(**SMALL).plain()
    assert Config(**SMALL, kernels="auto").digest() == Config(**SMALL).digest()
    assert Config(**SMALL, kernels="sparse").plain()["kernels"] == "sparse"
    with pytest.raises(CiglError, match="kernels"):
        Config(**SMALL, kernels="fast")


@pytest.mark.parametrize(("first", "then"), [("sparse", None), ("sparse", "masked"), ("masked", "sparse")])
def test_a_stopped_run_resumes_with_the_same_kernels_or_others(first, then, runs, tmp_path):
    with pytest.raises((KeyboardInterrupt, Stopped)):
        train(Config(**SMALL, kernels=first), tmp_path / "a", progress=stop_at(22), checkpoint_minutes=0.0)
    assert not RunFolder(tmp_path / "a").is_finished
    result = resume(tmp_path / "a", kernels=then)
    assert result["kernels"]["asked"] == (then or first)
    if then is None:
        expected = weights(runs[first][0])
        for name, value in weights(tmp_path / "a").items():
            assert torch.equal(value, expected[name]), name


def test_the_command_line(tmp_path):
    runner = CliRunner()
    options = ["--train-size", "256", "--epochs", "1", "--batch-size", "64", "--quiet"]
    run = ["train", "--method", "static", *options, "--out", str(tmp_path / "a"), "--kernels", "sparse", "--json"]
    result = runner.invoke(app, run)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "a" / "result.json").read_text())["kernels"]["asked"] == "sparse"
    again = runner.invoke(app, ["train", "--resume", str(tmp_path / "a"), "--kernels", "masked", "--json"])
    assert again.exit_code == 0, again.output
    bad = runner.invoke(app, ["train", *options, "--out", str(tmp_path / "b"), "--kernels", "fast"])
    assert bad.exit_code != 0
    assert "kernels" in bad.output + str(bad.stderr)
    assert not (tmp_path / "b").exists()
