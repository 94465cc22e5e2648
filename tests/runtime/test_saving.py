"""cigl.save and cigl.load: every tensor comes back as it was, and a wrong file changes nothing."""

import copy
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from saved_nets import Attention, Functional, Tied, TwoInputsTwoOutputs, layers, sparsen
from torch import nn
from torch.nn.utils import prune

import cigl
from cigl.calibrate import TemperatureScaled
from cigl.common.errors import CiglError, CiglWarning
from cigl.runtime import SparseInference, describe
from cigl.runtime.format import container
from cigl.runtime.format.tensors import pack, unpack

VERSION_1 = Path(__file__).with_name("version-1.cigl")  # written before the runtime was divided into packages
DENSE = {"engine": "dense"}


def read_with_numpy(path):
    """The reader of docs/format.md: safetensors and numpy alone."""
    code = re.search(
        r"```python\n(import json.*?)```", (Path(__file__).parents[2] / "docs" / "format.md").read_text(), re.S
    )
    room = {}
    exec(compile(code[1], "format.md", "exec"), room)
    return room["read"](path)


@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_a_file_of_version_1_is_still_loaded(engine):
    """It was saved with a temperature, with the plan that everything runs sparse, and with the outputs for ``x``."""
    x = (torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8) % 7 - 3) / 3
    loaded, description = cigl.load(VERSION_1, engine=engine), describe(VERSION_1)
    torch.testing.assert_close(loaded(x), torch.tensor(description["about"]["outputs"]))
    assert description["temperature"] == 1.25
    if engine == "sparse":
        assert loaded.plan()["shapes"] == description["plan"]["shapes"]
        assert {unit["runs"] for unit in loaded.plan()["shapes"][0]["units"]} == {"sparse"}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Holder(nn.Module):
    """Tensors of every kind, and no operations."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return x


def odd_tensors():
    """Each at the edge of something."""
    sparse = torch.zeros(40, 50)
    sparse[::7, ::9] = torch.randn(6, 6)
    special = torch.zeros(1000)
    special[[3, 500, 999]] = torch.tensor([math.nan, math.inf, -math.inf])
    return {
        "sparse": sparse, "special": special, "zeros": torch.zeros(300, 7), "dense": torch.randn(30, 7),
        "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "count": torch.tensor(7), "one": torch.ones(1),
        "last": torch.zeros(5000).index_fill(0, torch.tensor([4999]), 1.0), "flags": torch.rand(900) > 0.9,
        "halves": sparse.half(), "brain": sparse.bfloat16(), "doubles": sparse.double() / 3,
        "bytes": torch.zeros(600, dtype=torch.uint8), "strided": sparse.t(),
        "last_channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "tiny": torch.full((300,), 1e-45), "slice": torch.randn(10, 10)[2:5, ::2], "whole": torch.arange(-5, 5),
    }  # fmt: skip


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path):
    tensors = odd_tensors()
    cigl.save(Holder(tensors), tmp_path / "a.cigl")
    stored, description = container.read(tmp_path / "a.cigl")
    back, _ = unpack(stored, description["tensors"])
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(bits(back[name]), bits(tensor)), name
    sparse = {name.removesuffix(".gaps") for name in stored if name.endswith(".gaps")}
    assert sparse == {"sparse", "special", "zeros", "last", "halves", "brain", "doubles", "strided"}
    for name, array in read_with_numpy_but_bfloat16(tmp_path / "a.cigl").items():
        assert np.array_equal(array, tensors[name].contiguous().numpy(), equal_nan=array.dtype.kind == "f")


def read_with_numpy_but_bfloat16(path):
    """numpy has no bfloat16."""
    stored, description = container.read(path)
    stored.pop("brain.values"), stored.pop("brain.gaps"), description["tensors"].pop("brain")
    container.write(path, stored, description)
    return read_with_numpy(path)


def test_the_checksum_is_as_the_page_says(tmp_path):
    cigl.save(sparsen(nn.Sequential(nn.Linear(50, 40))), tmp_path / "a.cigl")
    with safe_open(tmp_path / "a.cigl", "np") as opened:
        metadata = opened.metadata()
    digest = hashlib.sha256(f"1\n{metadata['description']}\n".encode())
    names = {np.dtype("f4"): "F32", np.dtype("u1"): "U8"}
    for name, array in sorted(load_file(tmp_path / "a.cigl").items()):
        digest.update(f"{name} {names[array.dtype]} {list(array.shape)}\n".encode() + array.tobytes())
    assert metadata["sha256"] == digest.hexdigest()


def test_negative_zero_is_a_zero_where_a_tensor_is_sparse():
    weight = torch.zeros(1000)
    weight[5], weight[6] = -0.0, 1.0
    stored, index = pack(Holder({"a": weight, "b": torch.tensor([-0.0])}), half=False)
    assert stored["a.values"].tolist() == [1.0]
    back, _ = unpack(stored, index)
    assert not back["a"].signbit().any()
    assert back["b"].signbit().all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 12), max_size=4),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool]),
    st.floats(0, 1), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
def test_any_tensor_comes_back(shape, dtype, density, half, seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < density)
    model = nn.Module()
    if dtype.is_floating_point:
        model.weight = nn.Parameter(tensor.to(dtype))
    else:
        model.register_buffer("weight", tensor.to(dtype))
    back, parameters = unpack(*pack(model, half))
    wanted = model.weight.detach() + 0 if dtype.is_floating_point else model.weight  # -0.0 + 0 is 0.0
    if half and dtype in (torch.float32, torch.float64) and len(shape) > 1:
        wanted = wanted.half().to(dtype)
    assert torch.equal(bits(back["weight"] + 0) if dtype.is_floating_point else bits(back["weight"]), bits(wanted))
    assert parameters == ({"weight"} if dtype.is_floating_point else set())


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flips_and_truncations_of_a_model(tmp_path, data):
    path = tmp_path / "a.cigl"
    model = sparsen(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)))
    cigl.save(model, path, temperature=2.0)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for bit in data.draw(st.sets(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=4)):
            content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(CiglError):
        cigl.load(path, **DENSE)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CiglError):
        cigl.load(path, into=model, **DENSE)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"), [("mlp-300-100", (28, 28)), ("wrn-10-2", (3, 32, 32)), ("resnet18", (3, 32, 32))]
)
def test_a_finished_model(tmp_path, name, shape, half):
    model = cigl.models.build(name, 10, shape)
    sparse = cigl.attach(
        model, torch.optim.SGD(model.parameters(), 0.1), "static", sparsity=0.95, epochs=1, steps_per_epoch=1
    )
    with pytest.warns(CiglWarning, match="finalizing early"):
        model = sparsen(sparse.finalize(), 0)
    cigl.save(model, tmp_path / "a.cigl", half=half)
    back = cigl.load(tmp_path / "a.cigl", **DENSE)
    x = torch.randn(3, *shape)
    if half:
        torch.testing.assert_close(back(x), model(x), rtol=1e-2, atol=1e-2)
        assert all(tensor.dtype == model.state_dict()[key].dtype for key, tensor in back.state_dict().items())
    else:
        assert torch.equal(back(x), model(x))
        for key, array in read_with_numpy(tmp_path / "a.cigl").items():
            assert np.array_equal(array, model.state_dict()[key].numpy())


@pytest.mark.slow
def test_resnet50_is_small(tmp_path):
    model = cigl.models.build("resnet50", 1000, (3, 224, 224))
    sparse = cigl.attach(
        model, torch.optim.SGD(model.parameters(), 0.1), "static", sparsity=0.95, epochs=1, steps_per_epoch=1
    )
    with pytest.warns(CiglWarning, match="finalizing early"):
        model = sparse.finalize()
    for half, limit in ((False, 7.0e6), (True, 4.5e6)):
        cigl.save(model, tmp_path / "a.cigl", half=half)
        assert (tmp_path / "a.cigl").stat().st_size <= limit


def test_half_never_overflows_in_silence(tmp_path):
    model = nn.Linear(3, 3)
    model.weight.data[1, 1] = 1e5
    with pytest.raises(CiglError, match="weight has values beyond 65504"):
        cigl.save(model, tmp_path / "a.cigl", half=True)
    assert not list(tmp_path.iterdir())
    model.weight.data[1, 1] = math.inf
    model.bias.data[0] = 1e5
    cigl.save(model, tmp_path / "a.cigl", half=True)
    back = cigl.load(tmp_path / "a.cigl", **DENSE)
    assert back.weight[1, 1] == math.inf
    assert back.bias[0] == 1e5


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path):
    cigl.save(Tied(), tmp_path / "a.cigl")
    stored, _ = container.read(tmp_path / "a.cigl")
    assert sorted(stored) == ["first.bias", "first.weight", "other.bias"]
    back = cigl.load(tmp_path / "a.cigl", **DENSE)
    assert back.other.weight is back.first.weight
    model = cigl.load(tmp_path / "a.cigl", into=Tied, **DENSE)
    assert model.other.weight is model.first.weight
    assert torch.equal(model.other.weight, back.other.weight)


def test_the_model_stays_as_it_was(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    cigl.save(model, tmp_path / "a.cigl")
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_in_training_is_saved_as_its_true_weights(tmp_path):
    model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _alive = cigl.attach(model, optimizer, "rigl-wdp", sparsity=0.8, epochs=4, steps_per_epoch=5, update_every=2)
    for _ in range(3):
        model(torch.randn(8, 40)).sum().backward()
        optimizer.step()
    model(torch.randn(8, 40))  # Z is in force now
    true = copy.deepcopy(model)
    cigl.save(model, tmp_path / "a.cigl")
    back = cigl.load(tmp_path / "a.cigl", **DENSE)
    assert all(torch.equal(back.get_parameter(name), value) for name, value in true.named_parameters())
    assert all(torch.equal(back.get_parameter(name), value) for name, value in model.state_dict().items())
    assert not torch.equal(back.get_parameter("0.weight"), model[0].weight)


def test_wrappers_are_looked_into(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3)).eval()
    x = torch.randn(2, 3)
    for wrapped in (torch.compile(model), nn.DataParallel(model), TemperatureScaled(torch.compile(model), 1.0)):
        cigl.save(wrapped, tmp_path / "a.cigl")
        assert torch.equal(cigl.load(tmp_path / "a.cigl", **DENSE)(x), model(x))


def test_temperature(tmp_path):
    path = tmp_path / "a.cigl"
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    x = torch.randn(5, 4)
    scaled = TemperatureScaled(model, 1.7)
    for saved, temperature in ((model, 1.7), (scaled, None)):
        cigl.save(saved, path, temperature=temperature)
        torch.testing.assert_close(cigl.load(path, **DENSE)(x), scaled(x), rtol=1e-6, atol=0)
        assert torch.equal(cigl.load(path, calibrated=False, **DENSE)(x), model(x))
        torch.testing.assert_close(cigl.load(path, into=copy.deepcopy(model), **DENSE)(x), scaled(x))
        assert torch.equal(cigl.load(path, into=copy.deepcopy(model), calibrated=False, **DENSE)(x), model(x))
        assert describe(path)["temperature"] == pytest.approx(1.7)
    again = cigl.load(path, **DENSE)
    cigl.save(again, path)
    assert describe(path)["temperature"] == pytest.approx(1.7)
    torch.testing.assert_close(cigl.load(path, **DENSE)(x), scaled(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(again(x), scaled(x), rtol=1e-6, atol=0)
    with pytest.raises(CiglError, match="of its own"):
        cigl.save(scaled, path, temperature=2.0)
    for wrong in (0.0, -1.0, math.nan, math.inf, "2", True):
        with pytest.raises(CiglError, match="positive and finite"):
            cigl.save(model, path, temperature=wrong)
    with pytest.raises(CiglError, match="into has a temperature of its own"):
        cigl.load(path, into=scaled, **DENSE)
    fitted = cigl.calibrate.fit_temperature(logits=torch.randn(50, 3), labels=torch.arange(50) % 3)
    cigl.save(model, path, temperature=fitted)
    assert describe(path)["temperature"] == fitted.value


def test_a_temperature_needs_one_tensor_of_logits(tmp_path):
    with pytest.raises(CiglError, match="returns one tensor"):
        cigl.save(TwoInputsTwoOutputs(), tmp_path / "a.cigl", temperature=2.0)


def test_what_goes_with_the_model(tmp_path):
    path = tmp_path / "a.cigl"
    model = sparsen(nn.Sequential(nn.Linear(30, 20)))
    report = cigl.calibrate.report(logits=torch.randn(50, 20), labels=torch.arange(50) % 20)
    plan = {"version": 1, "shapes": []}
    cigl.save(model, path, report=report, plan=plan, about={"dataset": "mnist", "by": "Grünwald"})
    found = describe(path)
    assert found["report"] == json.loads(json.dumps(report.to_dict()))
    assert found["plan"] == plan
    assert found["about"] == {"dataset": "mnist", "by": "Grünwald"}
    assert found["bytes"] == path.stat().st_size
    assert found["parameters"] == 620
    assert found["nonzeros"] == int(model[0].weight.count_nonzero() + model[0].bias.count_nonzero())
    assert found["architecture"]["class"] == "Sequential"
    assert "in_features=30" in found["architecture"]["text"]
    before = path.read_bytes()
    for about in ({"x": object()}, {"x": math.nan}, {"x": "\ud800"}):
        with pytest.raises(CiglError, match="plain data"):
            cigl.save(model, path, about=about)
    assert path.read_bytes() == before


def test_weights_alone(tmp_path):
    path = tmp_path / "a.cigl"
    model = sparsen(Attention(), 0.5)
    with pytest.warns(CiglWarning, match="'attention' is a MultiheadAttention: load it with"):
        cigl.save(model, path)
    with pytest.raises(CiglError, match=r"'attention' is a MultiheadAttention: pass a model .*into=model"):
        cigl.load(path, **DENSE)
    x = torch.randn(2, 5, 8)
    for into in (Attention(), Attention):
        assert torch.equal(cigl.load(path, into=into, **DENSE)(x), model(x))


def test_into_fills_the_model_that_was_given(tmp_path):
    cigl.save(sparsen(Functional()), tmp_path / "a.cigl")
    model = Functional().double().float()
    assert cigl.load(tmp_path / "a.cigl", into=model, **DENSE) is model
    assert not model.training
    wanted = cigl.load(tmp_path / "a.cigl", **DENSE)
    x = torch.randn(2, 3, 20, 20)
    assert torch.equal(model(x), wanted(x))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU()), r"0.weight has the shape \[4, 4\] in the file, but \[5, 4\]"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "1.weight is in the model, but not in the file"),
        (nn.Sequential(nn.Linear(4, 4, bias=False)), "0.bias is in the file, but not in the model"),
        (
            nn.Sequential(nn.Linear(4, 4).double()),
            "0.weight has the dtype torch.float32 in the file, but torch.float64",
        ),
        (lambda: 5, "into made a int"),
    ],
)
def test_into_another_architecture(tmp_path, other, message):
    cigl.save(nn.Sequential(nn.Linear(4, 4)), tmp_path / "a.cigl")
    before = copy.deepcopy(other.state_dict()) if isinstance(other, nn.Module) else {}
    with pytest.raises(CiglError, match=message):
        cigl.load(tmp_path / "a.cigl", into=other, **DENSE)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())


def test_into_a_model_that_ties_what_the_file_does_not(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    cigl.save(model, tmp_path / "a.cigl")
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(CiglError, match="are one tensor in the model, but two in the file"):
        cigl.load(tmp_path / "a.cigl", into=tied, **DENSE)


def _lazy():
    return nn.Sequential(nn.LazyLinear(3))


def _pruned():
    return prune.random_unstructured(nn.Linear(3, 3), "weight", 0.5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_lazy(), "no shape yet"),
        (nn.Linear(3, 3, device="meta"), "not a plain tensor"),
        (Holder({"a": torch.eye(3).to_sparse()}), "not a plain tensor"),
        (Holder({"a": torch.zeros(3, dtype=torch.complex128)}), "complex128"),
        (_pruned(), r"can't be copied .*prune.remove"),
        ({"weight": torch.ones(3)}, "takes a torch.nn.Module, not a dict"),
    ],
)
def test_what_can_not_be_saved(tmp_path, model, message):
    with pytest.raises(CiglError, match=message):
        cigl.save(model, tmp_path / "a.cigl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_the_engine_runs_it(tmp_path, temperature):
    path = tmp_path / "a.cigl"
    model = sparsen(cigl.models.build("wrn-10-1", 10, (3, 32, 32)))
    x = torch.randn(9, 3, 32, 32)
    cigl.save(model, path, temperature=temperature)
    fast, dense = cigl.load(path), cigl.load(path, engine="dense")
    assert isinstance(fast, SparseInference)
    wanted = dense(x)
    assert (fast(x) - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    cigl.save(model, path, temperature=temperature, plan=fast.plan())
    again = cigl.load(path)
    assert torch.equal(again(x), fast(x))
    assert again.plan()["shapes"] == json.loads(json.dumps(fast.plan()))["shapes"]
    for more in ({"calibrated": False}, {"into": copy.deepcopy(model)}):
        wanted = cigl.load(path, engine="dense", **more)(x)
        assert (cigl.load(path, **more)(x) - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    with pytest.raises(CiglError, match="that the engine was made from"):
        cigl.save(fast, path)


def test_a_file_with_the_plan_of_another_model_is_named(tmp_path):
    fast = cigl.sparse_inference(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
    fast(torch.ones(1, 3))
    cigl.save(nn.Sequential(nn.Linear(3, 3)), tmp_path / "a.cigl", plan=fast.plan())
    with pytest.raises(
        CiglError, match=r"a\.cigl can't be loaded on the engine: the plan belongs to another model.*engine='dense'"
    ):
        cigl.load(tmp_path / "a.cigl")


def test_the_engine_is_for_float32(tmp_path):
    cigl.save(nn.Sequential(nn.Linear(3, 3).double()), tmp_path / "a.cigl")
    with pytest.raises(CiglError, match=r"torch\.float64, but sparse kernels compute in float32"):
        cigl.load(tmp_path / "a.cigl")


def test_unknown_engine(tmp_path):
    with pytest.raises(CiglError, match="unknown engine 'fast'"):
        cigl.load(tmp_path / "a.cigl", engine="fast")


# Files that are whole, and wrong


def forge(path, change):
    """Change what the file holds, and make its checksum fit."""
    stored, description = container.read(path)
    change(stored, description)
    container.write(path, stored, description)


def _index(name, **changes):
    return lambda stored, description: description["tensors"][name].update(changes)


def _stored(name, tensor):
    return lambda stored, description: stored.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_index("0.weight", shape=[10**6, 10**6]), "its tensors take more than 256 times the file's size"),
        (_index("0.weight", shape=[40, 49]), "0.weight: the gaps cover"),
        (_index("0.weight", shape=[2000]), "but its module needs"),
        (_index("0.weight", shape=[-40, -50]), "no type or no shape"),
        (_index("0.weight", shape="x"), "no type or no shape"),
        (_index("0.weight", shape=[2**40, 2**40]), "no type or no shape"),
        (_index("0.weight", dtype="F64"), "torch.float32, but should be torch.float64"),
        (_index("0.weight", dtype="I64"), "torch.float32, but should be torch.int64"),
        (_index("0.weight", dtype=5), "no type or no shape"),
        (_index("0.bias", shape=[3]), "0.bias has the shape"),
        (_index("0.bias", same="0.weight"), "0.bias is not in its index"),
        (_index("0.weight", same="0.bias"), "does not come before"),
        (_index("0.weight", same=[]), "unhashable|does not come before"),
        (_stored("0.weight.gaps", torch.full((10,), 255, dtype=torch.uint8)), "gaps cover 2550"),
        (_stored("0.weight.gaps", torch.zeros(3, dtype=torch.uint8)), "gaps cover 3"),
        (_stored("0.weight.gaps", torch.zeros(3)), "wrong type"),
        (_stored("0.weight.gaps", torch.zeros(3, 3, dtype=torch.uint8)), "wrong type"),
        (_stored("0.weight.values", torch.ones(3)), "but there are 3 values"),
        (_stored("0.weight.values", torch.ones(2, 2)), "wrong type"),
        (_stored("0.weight", torch.ones(40, 50)), "0.weight.gaps is not in its index"),
        (_stored("more", torch.ones(3)), "more is not in its index"),
        (lambda stored, description: stored.pop("0.bias"), "0.bias is missing"),
        (lambda stored, description: description["tensors"].pop("0.bias"), "0.bias is not in its index"),
        (lambda stored, description: description.pop("tensors"), "index of its tensors is missing"),
        (lambda stored, description: description["tensors"].update({"0.bias": 5}), "index of 0.bias"),
        (lambda stored, description: description.update(graph=[]), "graph is not a list of nodes"),
        (lambda stored, description: description.update(graph={"nodes": "x" * 99}), "graph is not a list of nodes"),
        (lambda stored, description: description.update(temperature="2"), "temperature is not a positive number"),
        (lambda stored, description: description.update(temperature=-2), "temperature is not a positive number"),
        (lambda stored, description: description.update(temperature=10**400), "temperature is not a positive number"),
        (lambda stored, description: description.update(temperature=True), "temperature is not a positive number"),
        (lambda stored, description: description.update(graph=None, outside=None), "pass a model"),
    ],
)
def test_forged_files(tmp_path, change, message):
    path = tmp_path / "a.cigl"
    cigl.save(sparsen(nn.Sequential(nn.Linear(50, 40))), path)
    forge(path, change)
    with pytest.raises(CiglError, match=message) as caught:
        cigl.load(path, **DENSE)
    assert str(path) in str(caught.value)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 255), max_size=12), st.integers(0, 12), st.lists(st.integers(-2, 2**50), max_size=3),
    st.sampled_from([*container.DTYPES, "x"]),
)  # fmt: skip
def test_any_gaps_and_shapes_are_refused_or_right(gaps, count, shape, dtype):
    stored = {"w.gaps": torch.tensor(gaps, dtype=torch.uint8), "w.values": torch.ones(count)}
    try:
        tensors, _ = unpack(stored, {"w": {"dtype": dtype, "shape": shape, "kind": "buffer"}})
    except CiglError:
        return
    assert list(tensors["w"].shape) == shape
    assert int(tensors["w"].count_nonzero()) == count
    assert tensors["w"].numel() <= 255 * (len(gaps) + 1)


def test_saving_twice_writes_the_same_bytes(tmp_path):
    model = sparsen(layers())
    for name in "ab":
        cigl.save(model, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
