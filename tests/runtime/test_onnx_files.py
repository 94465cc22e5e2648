"""ONNX files, run by ONNX Runtime and compared with torch."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import cigl
from cigl.calibrate import TemperatureScaled
from cigl.common.errors import CiglError

NAMES = ["cat", "dog", "größer"]
PREPROCESSING = cigl.Preprocessing((10, 12), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))


def sparse(model, share=0.9):
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p[torch.rand_like(p) < share] = 0
    return model


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A network with a residual sum and batch norm, finalized, in an ONNX file."""
    torch.manual_seed(0)
    model = sparse(cigl.models.build("wrn-10-1", 3, (3, 10, 12)))
    model.train()(torch.randn(8, 3, 10, 12))  # other statistics than at first
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    cigl.export_onnx(model, path, temperature=1.7, classes=NAMES, preprocessing=PREPROCESSING)
    assert model.training
    return model.eval(), path


def test_the_outputs_are_torchs_for_any_batch(exported):
    model, path = exported
    running = session(path)
    assert [each.name for each in running.get_outputs()] == ["logits", "probabilities"]
    assert [each.name for each in running.get_inputs()] == ["input"]
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 10, 12)
        logits, probabilities = (torch.from_numpy(each) for each in running.run(None, {"input": x.numpy()}))
        with torch.no_grad():
            right = model(x)
        assert (logits - right).abs().max() <= 1e-4 * right.abs().max()
        torch.testing.assert_close(probabilities, (right / 1.7).softmax(1), atol=1e-4, rtol=0)


def test_zeros_are_kept_and_the_file_is_sound(exported):
    model, path = exported
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    stored = [onnx.numpy_helper.to_array(each) for each in proto.graph.initializer]
    zeros = sum(int((each == 0).sum()) for each in stored if each.ndim > 1)
    assert zeros >= sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1) > 50_000
    assert list(path.parent.iterdir()) == [path]  # no weights beside it


def test_metadata(exported):
    found = session(exported[1]).get_modelmeta().custom_metadata_map
    assert json.loads(found["classes"]) == NAMES
    assert cigl.Preprocessing.from_dict(json.loads(found["preprocessing"])) == PREPROCESSING
    assert float(found["temperature"]) == 1.7


class Two(nn.Module):
    """Keyword inputs and an output with a name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left, right):
        return {"logits": self.layer(left * right)}


def test_a_temperature_of_the_models_own_and_inputs_by_name(tmp_path):
    model = Two().eval()
    left, right = torch.randn(2, 5, 4)
    cigl.export_onnx(
        TemperatureScaled(model, 3.0), tmp_path / "a.onnx", example_inputs={"left": left[:1], "right": right[:1]}
    )
    given = {"left": left.numpy(), "right": right.numpy()}
    logits, probabilities = session(tmp_path / "a.onnx").run(None, given)
    expected = model(left, right)["logits"].detach()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(probabilities, (expected / 3).softmax(1), atol=1e-5)


class Loops(nn.Module):
    def forward(self, x):
        while x.sum() > 1:
            x = x / 2
        return x


class OneSize(nn.Module):
    def forward(self, x):
        return x.reshape(2, 4)


def test_what_can_not_be_exported(tmp_path, monkeypatch, capfd):
    path, model, x = tmp_path / "a.onnx", nn.Linear(4, 3), torch.randn(2, 4)
    path.write_bytes(b"before")
    with pytest.raises(CiglError, match="trained, not a SparseInference"):
        cigl.export_onnx(cigl.sparse_inference(model), path, example_inputs=(x,))
    with pytest.raises(CiglError, match="inputs are not known"):
        cigl.export_onnx(model, path)
    with pytest.raises(CiglError, match="temperature is -1"):
        cigl.export_onnx(model, path, example_inputs=(x,), temperature=-1)
    with pytest.raises(CiglError, match="can't be exported to ONNX: ") as caught:
        cigl.export_onnx(Loops(), path, example_inputs=(x,))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(CiglError, match="batches of one size only"):
        cigl.export_onnx(OneSize(), path, example_inputs=(x,))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(CiglError, match=r"need onnxscript, which is not installed: pip install 'cigl\[onnx\]'"):
        cigl.export_onnx(model, path, example_inputs=(x,))
    assert path.read_bytes() == b"before"


def test_a_place_that_can_not_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("cigl.runtime.onnx_files._converted", lambda *args: b"")
    with pytest.raises(CiglError, match="can't be written"):
        cigl.export_onnx(nn.Linear(4, 3), tmp_path / "none" / "a.onnx", example_inputs=(torch.randn(2, 4),))
