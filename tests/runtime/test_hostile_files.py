"""Loading takes time and memory in proportion to the file, whatever the file says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hostile_files import LARGE, LONG, File, at, fields, function, module, written
from saved_nets import sparsen
from torch import nn

import cigl
from cigl.common.errors import CiglError
from cigl.runtime import dense, describe, layers
from cigl.runtime.dense import has_many_zeros
from cigl.runtime.format import container, tensors
from cigl.runtime.network.weights import Weight

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::cigl.common.errors.CiglWarning")


def lines(call):
    """How many lines of python a call runs, in cigl and in the libraries."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", LONG)
def test_time_is_linear(tmp_path, name):
    paths = [written(LONG[name], n, tmp_path / f"{n}.cigl") for n in (20, 60, 260)]
    cigl.load(paths[0])  # whatever is done once
    counts = [lines(lambda path=path: cigl.load(path)) for path in paths]
    assert counts[2] - counts[1] <= 1.2 * 5 * (counts[1] - counts[0])


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="asks Linux for the memory")
def test_memory_is_bounded(tmp_path):
    """By six times what the tensors may take, as docs/format.md says."""
    command = [sys.executable, str(HERE / "hostile_files.py"), str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=600).stdout)
    assert len(found) == 2 * len(LARGE)
    for name, (size, peak, message) in found.items():
        assert peak <= 6 * max(tensors.EXPANSION * size, tensors.SMALL), name
        assert message is None or "\n" not in message
    refused = {name.split()[0] for name, (_, _, message) in found.items() if message is not None}
    assert refused == {"gaps", "deep_paths"}


@pytest.mark.parametrize("name", ["tied_layers", "tied_layers_in_torch", "products_with_one_matrix"])
def test_zeros_are_counted_once_for_each_tensor(tmp_path, name, monkeypatch):
    """A small file can name a large tensor thousands of times."""
    path = written(LARGE[name], 200, tmp_path / "a.cigl")
    calls = []
    for place in (dense, layers):
        monkeypatch.setattr(place, "has_many_zeros", lambda weight: calls.append(1) or has_many_zeros(weight))
    packs = []
    monkeypatch.setattr(Weight, "shrink", lambda self, form: packs.append(self))
    cigl.load(path)
    assert len(calls) <= 8
    assert len(set(map(id, packs))) <= 8


def load_of(path, *nodes, modules=None, engine="sparse", weights=()):
    file = File()
    for name, shape in weights:
        file.weight(name, *shape)
    file.nodes += nodes
    file.modules = modules or {}
    file.write(path)
    return cigl.load(path, engine=engine)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (fields("LeakyReLU", negative_slope=10**400, inplace=False), "negative_slope can't be 1000"),
        (fields("LeakyReLU", negative_slope=-(10**400), inplace=False), "negative_slope can't be -1000"),
        (fields("ELU", alpha=1e30, inplace=False), "alpha can't be 1e"),
        (fields("Embedding", num_embeddings=0, embedding_dim=4, padding_idx=3), "its graph has"),
        (fields("Unflatten", dim=1, unflattened_size=[10**400]), "unflattened_size can't be"),
    ],
)
def test_arguments_of_modules(tmp_path, given, message):
    for engine in ("sparse", "dense"):
        with pytest.raises(CiglError, match=message):
            load_of(tmp_path / "a.cigl", module("0", 0), modules={"0": given}, engine=engine)


@pytest.mark.parametrize(
    "nodes",
    [
        [function("torch.transpose", at(0), 5, 9)],
        [function("torch.permute", at(0), "shape")],
        [function("torch.nn.functional.conv2d", at(0), at(1), None, {"tuple": [at(0), at(0)]})],
        [function("torch.nn.functional.conv2d", at(0), at(1), None, 1, 0, 1, 0)],
        [function("torch.nn.functional.linear", at(0), at(1), at(1))],
        [function("torch.nn.functional.batch_norm", at(0), at(1), None)],
        [function("torch.nn.functional.layer_norm", at(0), 3, at(1))],
        [function("torch.add", at(0), at(0), out=at(1))],
        [function("torch.full", [2**31 - 1, 2**31 - 1, 2**31 - 1], 1.0)],
        [function("operator.getitem", at(0), {"slice": ["shape", at(0), None]})],
        [{"op": "method", "name": "repeat", "args": [at(0), 2**31 - 1, 2**31 - 1, 2**31 - 1]}],
        [{"op": "method", "name": "to", "args": [at(0), {"dtype": "F8_E5M2"}]}, function("torch.sin", at(2))],
    ],
)
def test_calls_that_make_no_sense_are_refused_when_they_are_made(tmp_path, nodes):
    weight = {"op": "tensor", "name": "w"}
    for engine in ("sparse", "dense"):
        model = load_of(tmp_path / "a.cigl", weight, *nodes, weights=[("w", (3, 3))], engine=engine)
        with pytest.raises(CiglError) as caught:
            model(torch.randn(2, 3, 4, 4))
        assert "\n" not in str(caught.value)
        if engine == "dense":
            wrong = nodes[-1]
            assert f"at node {1 + len(nodes)}, {wrong['op']} {wrong['name']}: " in str(caught.value)


def test_a_call_without_its_arguments_is_refused(tmp_path):
    for engine in ("sparse", "dense"):
        with pytest.raises(CiglError, match="node 1 of its graph, function getattr, is called with wrong arguments"):
            load_of(tmp_path / "a.cigl", function("getattr", at(0)), engine=engine)


@pytest.mark.parametrize("activation", [fields("Hardswish", inplace=False), fields("Tanh"), fields("Sigmoid")])
def test_an_activation_called_with_two_arguments_is_refused(tmp_path, activation):
    given = {"0": fields("Linear", in_features=3, out_features=3, bias=False), "1": activation}
    call = {"op": "module", "name": "1", "args": [at(1), at(0)]}
    for engine in ("sparse", "dense"):
        weights = [("0.weight", (3, 3))]
        with pytest.raises(CiglError, match="can't be loaded: node 2 of its graph, module 1, is called with wrong arg"):
            load_of(tmp_path / "a.cigl", module("0", 0), call, modules=given, weights=weights, engine=engine)


def test_a_wrong_input_of_a_dense_model_names_the_node(tmp_path):
    cigl.save(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), tmp_path / "a.cigl")
    with pytest.raises(CiglError, match=r"can't be run at node 1, module 0: mat1 and mat2 shapes"):
        cigl.load(tmp_path / "a.cigl", engine="dense")(torch.ones(2, 7))


def test_a_batch_norm_of_other_features_is_not_folded(tmp_path):
    file = File()
    file.weight("c.weight", 1, 3, 1, 1)
    file.modules["c"] = fields("Conv2d", in_channels=3, out_channels=1, kernel_size=1)
    file.norm("b", 5)
    file.add(module("b", file.add(module("c", 0))))
    file.write(tmp_path / "a.cigl")
    with pytest.raises(CiglError, match="can't take inputs of shape"):
        cigl.load(tmp_path / "a.cigl")(torch.ones(1, 3, 2, 2))


class Shared(nn.Module):
    """A convolution with two batch norms, as detectors have for pictures of several sizes."""

    def __init__(self):
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x):
        return self.one(self.conv(x)).relu() + self.other(self.conv(x + 1)).relu() + self.one(self.conv(x * 2))


def test_one_weight_and_two_batch_norms():
    model = sparsen(Shared(), 0.5)
    fast, x = cigl.sparse_inference(model), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    weights = {id(unit.operation.weight) for unit in fast._network.units if hasattr(unit.operation, "weight")}
    assert len(weights) == 2  # folded once


def test_what_is_saved_can_be_loaded_however_few_weights_are_left(tmp_path, monkeypatch):
    """A file that would expand more than a reader allows gets some zeros among its values."""
    monkeypatch.setattr(tensors, "SMALL", 1000)
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 100), nn.Linear(100, 10)).eval()
    for half in (False, True):
        for dtype in (torch.float32, torch.float64):
            model = model.to(dtype)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
                model[0].weight[7, 13] = 2.5
            path = tmp_path / f"{half}{dtype}.cigl"
            cigl.save(model, path, half=half)
            back = cigl.load(path, engine="dense")
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))
            assert describe(path)["nonzeros"] == 1
            assert 256 * path.stat().st_size >= sum(each.nbytes for each in model.parameters())
    stored, description = container.read(path)
    assert any(name.endswith(".gaps") for name in stored)
    stored["0.weight.gaps"] = torch.full((200 * 300 // 255,), 255, dtype=torch.uint8)
    stored = {"0.weight.gaps": stored["0.weight.gaps"], "0.weight.values": torch.zeros(0).double()}
    description["tensors"] = {"0.weight": description["tensors"]["0.weight"]}
    container.write(path, stored, description)
    with pytest.raises(CiglError, match="more than 256 times the file's size"):
        cigl.load(path, engine="dense")


@pytest.mark.parametrize("dtype", container.DTYPES.values(), ids=container.DTYPES)
def test_parameters_of_every_type(tmp_path, dtype):
    class Holder(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.odd = nn.Parameter(value, requires_grad=False)
            self.tied = self.odd

        def forward(self, x):
            return self.linear(x)

    value = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 1]]).to(dtype).repeat(20, 20)
    model, path = Holder(value), tmp_path / "a.cigl"
    cigl.save(model, path)
    assert describe(path)["nonzeros"] == 20 * 20 * 4 + 8
    other = Holder(torch.zeros_like(value))
    cigl.load(path, into=other, engine="dense")
    for each in (other.odd, other.tied):
        assert torch.equal(each.view(torch.uint8), value.view(torch.uint8))


def mutated(seed, count, *names):
    command = [sys.executable, "-X", "faulthandler", str(HERE / "mutated_files.py"), str(seed), str(count), *names]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-2000:]}"


def test_mutated_files_are_refused_or_run():
    mutated(0, 20, "mobile", "dense", "unet", "recurrent")


@pytest.mark.slow
def test_thousands_of_mutated_files():
    mutated(100, 500)
