"""``cigl bench`` and what it measures with."""

from __future__ import annotations

import json
import sys
from itertools import count

import pytest
import torch
from nets import sparse
from torch import nn
from typer.testing import CliRunner

import cigl
from cigl.cli import app
from cigl.common.errors import CiglError
from cigl.runtime import bench as benches
from cigl.runtime.program import library

runner = CliRunner()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "model.cigl"
    model = sparse(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)), 0.9)
    cigl.save(model, path, about={"shape": [3, 8, 8]})
    return path


def run(*arguments):
    result = runner.invoke(app, ["bench", *map(str, arguments), "--seconds", "0"])
    return result.exit_code, result.output


def test_multiply_adds_count_the_nonzeros_at_each_place():
    model = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.Flatten(), nn.Linear(12, 5))
    with torch.no_grad():
        model[0].weight.zero_()[1, 1] = 1.0  # at 4 places of 7 images
        model[2].weight.zero_()[:, 0] = 1.0  # 5 for each of 7
    fast = cigl.sparse_inference(model)
    fast(torch.ones(7, 2, 2, 2))
    assert benches.multiply_adds(fast.plan()["shapes"][0]) == 7 * (4 + 5)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = sparse(nn.Linear(64, 32), 0.9)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@pytest.mark.filterwarnings("ignore:.*can't be traced")
def test_a_model_that_runs_layer_by_layer():
    model = Untraceable().eval()
    fast = cigl.sparse_inference(model)
    found = benches.bench(model, fast, torch.ones(4, 64), benches.rivals(["torch"]), threads=1, seconds=0)
    assert found["ratios"]["torch"] > 0
    if library.available():
        assert found["units"] == 1
        assert found["gflops_on_nonzeros"] > 0
    else:
        assert found["units"] == 0


def test_calls_are_warmed_up_until_their_times_settle(monkeypatch):
    took, calls = iter([9.0, 5.0, 5.1, 4.0, *[3.99] * 9]), []
    monkeypatch.setattr(benches, "WARM_UP", 1000.0)
    monkeypatch.setattr(benches, "_seconds", lambda call, repeats: call() or next(took))
    benches.warm_up(lambda: calls.append(1))
    assert len(calls) == 4 + benches.SETTLED  # the last that was faster by a fiftieth, and those after it


def test_torch_runs_in_the_faster_layout(monkeypatch):
    heard = []
    model = nn.Conv2d(3, 4, 3)
    monkeypatch.setattr(benches, "warm_up", lambda call: None)
    for faster in (torch.channels_last, torch.contiguous_format):
        heard.clear()

        def seconds(call, repeats, faster=faster):
            call()
            return 1.0 if heard[-1] == faster else 2.0

        def forward(x):
            last = x.is_contiguous(memory_format=torch.channels_last)
            heard.append(torch.channels_last if last else torch.contiguous_format)

        monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: forward(x))
        monkeypatch.setattr(benches, "_seconds", seconds)
        benches.RIVALS["torch"](model, torch.randn(2, 3, 8, 8), 1)()
        assert heard[-1] == faster


def test_weights_are_compared_with_weights():
    model = sparse(nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 100)), 0.95)
    fast = cigl.sparse_inference(model)
    found = benches.bench(model, fast, torch.ones(64, 200), {}, threads=1, seconds=0)
    assert found["dense_bytes"] == sum(each.nbytes for each in model.parameters())
    assert found["weight_bytes"] + found["buffer_bytes"] == found["bytes"] == fast.bytes
    if library.available():
        assert found["weight_bytes"] < 0.15 * found["dense_bytes"]  # whatever the batch


def test_a_run_is_measured_as_it_is(tmp_path):
    out = tmp_path / "run"
    assert runner.invoke(app, ["train", "--epochs", "1", "--train-size", "200", "--out", str(out)]).exit_code == 0
    code, output = run(out)
    assert code == 0, output
    assert "1x40, 1 thread" in output


def test_calls_take_turns(monkeypatch):
    clock = count()
    monkeypatch.setattr(benches.time, "perf_counter", lambda: next(clock))
    heard = []
    times = benches.interleaved({"a": lambda: heard.append("a"), "b": lambda: heard.append("b")}, seconds=0)
    assert "".join(heard) == "ab" * 2 + "aabb" * benches.LEAST_ROUNDS
    assert times == {"a": 1, "b": 1}


def test_the_table(file):
    code, output = run(file, "--batch", 2, "--against", "torch,onnxruntime")
    assert code == 0, output
    for word in ("cigl", "torch", "onnxruntime", "GFLOP/s", "MB dense", "buffers", "loaded in", "2x3x8x8"):
        assert word in output
    assert "in turns after warming each engine up" in output
    if sys.platform == "linux":
        assert "freed memory is kept" in output
    assert "next:" not in output  # nothing that was not measured


def test_next_commands_are_those_that_were_not_run(file):
    _, output = run(file)
    assert f"\nnext:\n  cigl bench {file} --batch 64 " in output
    assert f"  cigl bench {file} --against torch,onnxruntime  " in output
    assert "predict" not in output  # the file says nothing of images
    assert f"cigl bench {file} --against torch,onnxruntime --shape 3x8x8" in run(file, "--shape", "3x8x8")[1]


def test_json(file):
    code, output = run(file, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert set(found["milliseconds"]) == {"cigl", "torch"}
    assert found["ratios"]["torch"] == pytest.approx(found["milliseconds"]["torch"] / found["milliseconds"]["cigl"])
    assert found["shape"] == [1, 3, 8, 8]


def test_without_onnxruntime_the_other_rows_are_shown(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, output = run(file, "--against", "torch,onnxruntime")
    assert code == 0, output
    assert "pip install 'cigl[bench]'" in output
    assert "torch " in output


def test_the_shape_is_asked_for_where_the_file_has_none(tmp_path):
    path = tmp_path / "plain.cigl"
    model = nn.Linear(6, 2)
    cigl.save(model, path)
    code, output = run(path)
    assert code == 2
    assert "--shape" in output
    assert run(path, "--shape", "0x3")[0] == 2
    assert run(path, "--shape", "many")[0] == 2
    assert run(path, "--shape", "60000x60000x60000")[0] == 2
    assert run(path, "--shape", "6")[0] == 0
    fast = cigl.sparse_inference(model)
    fast(torch.ones(3, 6))
    cigl.save(model, path, plan=fast.plan())
    assert run(path)[0] == 0


def test_files_that_are_no_model_of_ours_are_named(tmp_path):
    for name, says in (("model.onnx", "for other engines"), ("model.pt", "cigl.save(model, path)")):
        other = tmp_path / name
        other.write_bytes(bytes(100))
        for command in (["bench", other], ["predict", other, tmp_path]):
            result = runner.invoke(app, [*map(str, command)])
            assert result.exit_code == 2
            assert says in result.output or "holds no images" in result.output
    assert "there is no" in run(tmp_path / "nothing.cigl")[1]


def test_clear_errors(file):
    assert "did you mean 'torch'" in run(file, "--against", "torhc")[1]
    code, output = run(file, "--shape", "4x8x8")
    assert code == 2
    assert "can't take inputs of shape" in output
    with pytest.raises(CiglError, match="unknown engine"):
        benches.rivals(["deepsparse"])
