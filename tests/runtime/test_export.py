"""cigl export, as a person and as a script use it."""

import json

import pytest
import torch
from typer.testing import CliRunner

import cigl
from cigl.cli import app
from cigl.common import tensors

runner = CliRunner()
QUICK = ["--train-size", "320", "--epochs", "2", "--update-every", "4", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    result = runner.invoke(app, ["train", "--out", str(folder), "--temperature", "holdout", *QUICK])
    assert result.exit_code == 0, result.output
    return folder


def test_help():
    result = runner.invoke(app, ["export", "--help"])
    assert "cigl export runs/001 model.cigl" in result.output


def test_export_and_load(run, tmp_path):
    path = tmp_path / "model.cigl"
    result = runner.invoke(app, ["export", str(run), str(path)])
    assert result.exit_code == 0, result.output
    assert f"load it in Python: cigl.load({str(path)!r})" in result.output
    model = cigl.models.build("mlp", 10, (40,)).eval()
    model.load_state_dict(tensors.load(run / "model.safetensors"))
    temperature = json.loads((run / "result.json").read_text())["temperature"]
    x = torch.randn(5, 40)
    torch.testing.assert_close(cigl.load(path)(x), model(x).detach() / temperature)
    found = cigl.runtime.describe(path)
    assert found["report"]["metrics"] == json.loads((run / "report-temperature.json").read_text())["metrics"]
    assert found["temperature"] == temperature
    assert found["about"]["config"]["model"] == "mlp"


def test_half_and_json(run, tmp_path):
    sizes = []
    for more in ([], ["--half"]):
        result = runner.invoke(app, ["export", str(run), str(tmp_path / "model.cigl"), "--json", *more])
        found = json.loads(result.stdout)
        assert found["file"] == str(tmp_path / "model.cigl")
        sizes.append(found["bytes"])
    assert sizes[1] < 0.8 * sizes[0]


def test_what_can_not_be_exported(run, tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    members = tmp_path / "members"
    members.mkdir()
    (members / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace("method: cigl", "method: cigl-no-wma")
    )
    (members / "result.json").write_text("{}")
    for folder, target, message in (
        (unfinished, "a.cigl", "is not finished"),
        (members, "a.cigl", "average over several models"),
        (tmp_path / "none", "a.cigl", "is not a run folder"),
        (run, "none/a.cigl", "can't be written"),
    ):
        result = runner.invoke(app, ["export", str(folder), str(tmp_path / target)])
        assert result.exit_code == 2
        assert message in result.output
        assert result.output.startswith("error: ")
    assert not (tmp_path / "a.cigl").exists()


def test_a_name_says_what_is_written(run, tmp_path):
    for name in ("model.pt", "model"):
        result = runner.invoke(app, ["export", str(run), str(tmp_path / name)])
        assert result.exit_code == 2
        assert "neither .cigl nor .onnx" in result.output
        assert not (tmp_path / name).exists()
