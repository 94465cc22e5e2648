"""Other people's models, captured with example inputs: Transformers, nn.TransformerEncoder, dicts, control flow."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
import torch.nn.functional as F
from nets import close
from saved_nets import Checked
from torch import nn
from torch.utils import _pytree as pytree

import cigl
from cigl.common.errors import CiglError, CiglWarning
from cigl.runtime.network import operations as op
from cigl.runtime.program import library
from cigl.runtime.schedule import Schedule, fitting, survey

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {"vocab_size": 60, "max_position_embeddings": 40}


def words(batch, length):
    return torch.randint(2, 60, (batch, length))


def masked(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {"input_ids": words(batch, length), "attention_mask": mask}


def transformers_model(name):
    tr = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return {
        "bert": lambda: tr.BertForSequenceClassification(tr.BertConfig(**SIZES, **WORDS)),
        "distilbert": lambda: tr.DistilBertForSequenceClassification(
            tr.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **WORDS)
        ),
        "roberta": lambda: tr.RobertaForSequenceClassification(tr.RobertaConfig(**SIZES, **WORDS)),
        "gpt2": lambda: tr.GPT2LMHeadModel(
            tr.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=40, vocab_size=60, bos_token_id=0, eos_token_id=1)
        ),
        "llama": lambda: tr.LlamaForCausalLM(tr.LlamaConfig(**SIZES, **WORDS, num_key_value_heads=1)),
        "t5": lambda: tr.T5ForConditionalGeneration(
            tr.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=60)
        ),
        "vit": lambda: tr.ViTForImageClassification(tr.ViTConfig(**SIZES, image_size=16, patch_size=4)),
    }[name]()


def inputs_of(name, batch, length):
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16)}
    if name == "t5":
        return {"input_ids": words(batch, length), "decoder_input_ids": words(batch, length - 2)}
    return masked(batch, length)


def thinned(model, zeros=0.7):
    """With zeros, and weights that are large enough to matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=generator)
                parameter.mul_(torch.rand(parameter.shape, generator=generator) >= zeros)
    return model.eval()


def check(found, wanted):
    """All tensors of nested outputs, except for a cache, which engines don't return."""
    if isinstance(wanted, dict):
        assert found.keys() <= wanted.keys()
        assert "past_key_values" in wanted or found.keys() == wanted.keys()
        wanted = {name: each for name, each in wanted.items() if name in found}
        found = dict(found)
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    assert len(ours) == len(theirs) > 0
    assert all(close(a, b) for a, b in zip(ours, theirs, strict=True))


def all_sparse(engine, *args, **kwargs):
    """The output with everything on kernels that can be, and the number of layers that are."""
    network = engine._network
    inputs = network.signature.bind(args, kwargs)
    with torch.no_grad():
        facts = survey(network, inputs)
        units = fitting(network, facts)
        result = Schedule(network, facts, units, 1)(inputs)
    return result, sum(isinstance(network.units[number].operation, op.Weighted) for number in units)


def layers_of(model):
    return sum(type(each).__name__ in ("Linear", "Conv1D", "Conv2d") for each in model.modules())


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "gpt2", "llama", "t5", "vit"])
def test_transformers_models_run_sparse_from_a_file(name, tmp_path):
    model = thinned(transformers_model(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)  # nothing runs dense
        cigl.save(model, tmp_path / "model.cigl", example_inputs=inputs_of(name, 2, 7))
        fast = cigl.load(tmp_path / "model.cigl")
        dense = cigl.load(tmp_path / "model.cigl", engine="dense")
        for batch, length in ((2, 7), (3, 9), (1, 5)):
            inputs = inputs_of(name, batch, length)
            with torch.no_grad():
                wanted = model(**inputs)
                check(dense(**inputs), wanted)
            check(fast(**inputs), wanted)
            if library.available():
                result, count = all_sparse(fast, **inputs)
                check(result, wanted)
                assert count == layers_of(model)
    assert close(fast(**inputs).logits, wanted.logits)
    assert close(fast(*inputs.values())[0] if name in ("vit", "bert") else fast(**inputs)[0], wanted[0])


def test_the_models_own_class_of_outputs():
    model = thinned(transformers_model("bert"))
    fast = cigl.sparse_inference(model, example_inputs=masked(2, 7))
    inputs = masked(3, 6)
    with torch.no_grad():
        wanted = model(**inputs)
    found = fast(**inputs, return_dict=None)  # what is None may be passed
    assert type(found) is type(wanted)
    check(found, wanted)
    check(fast(inputs["input_ids"], inputs["attention_mask"]), wanted)
    for wrong, message in (
        ({**inputs, "token_type_ids": inputs["input_ids"]}, "but not token_type_ids: .*example_inputs"),
        ({"input_ids": inputs["input_ids"]}, "attention_mask is missing"),
        ({**inputs, "attention_mask": inputs["attention_mask"].bool()}, "was captured with torch.int64"),
        ({**inputs, "attention_mask": inputs["attention_mask"][:, :5]}, "was captured for inputs with"),
    ):
        with pytest.raises(CiglError, match=message):
            fast(**wrong)
    plan = json.loads(json.dumps(fast.plan()))
    assert any(unit["unit"] == "bert.encoder.layer.0.attention.self.query" for unit in plan["shapes"][0]["units"])
    assert not fast.notes


def test_without_examples_each_layer_runs_sparse_and_a_warning_says_so():
    model = thinned(transformers_model("bert"))
    with pytest.warns(CiglWarning, match="its sparse layers one by one"):
        fast = cigl.sparse_inference(model)
    inputs = masked(2, 7)
    with torch.no_grad():
        check(fast(**inputs), model(**inputs))
    if library.available():
        plan = fast.plan()
        assert "bert.encoder.layer.1.output.dense" in plan["layers"]
        assert len(plan["layers"]) == sum(isinstance(m, nn.Linear) and m.weight.numel() >= 256 for m in model.modules())
        with pytest.warns(CiglWarning):
            again = cigl.sparse_inference(model, plan=json.loads(json.dumps(plan)))
        check(again(**inputs), fast(**inputs))
        assert again.plan()["layers"] == plan["layers"]
    assert fast.bytes > 0 or not library.available()


def test_a_transformer_encoder_with_a_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = thinned(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x, mask = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    fast = cigl.sparse_inference(model, example_inputs={"src": x, "src_key_padding_mask": mask})
    for batch, length in ((2, 5), (1, 8)):
        x = torch.randn(batch, length, 16)
        mask = torch.zeros(batch, length, dtype=torch.bool)
        mask[:, length - 1] = True
        with torch.no_grad():
            wanted = model(x, src_key_padding_mask=mask)
        assert close(fast(x, src_key_padding_mask=mask), wanted)
        if library.available():
            result, count = all_sparse(fast, x, src_key_padding_mask=mask)
            assert close(result, wanted)
            assert count == 8  # in- and out-projection and two linear layers, twice
    if library.available():
        with pytest.warns(CiglWarning, match=r"in_proj_weight.*run dense.*example_inputs"):
            cigl.sparse_inference(nn.Sequential(model))  # torch.fx does not look into it


class Mixed(nn.Module):
    """What torch.fx can't trace or hold."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)
        self.table = nn.Parameter(torch.randn(32, 16))

    def forward(self, batch, *, scale=None, flag=False):
        x = batch["x"]
        if x.shape[-1] != 16:
            raise ValueError("sixteen features")
        if x.shape[0] > 2:  # on a shape
            x = x * 2
        y = self.first(x)
        y[:, 0] = 1.0  # in place
        y += batch["more"][0]
        y.relu_()
        if scale is not None:
            y = y * scale
        z = self.last(y)
        return {"z": z, "rest": (y @ self.table, [torch.tensor([1.0, 2.0]) + z.mean()], None), "size": x.shape[0]}


def mixed(batch, scale=True):
    given = {"batch": {"x": torch.randn(batch, 16), "more": [torch.randn(batch, 32)]}, "flag": True}
    return given | ({"scale": torch.rand(batch, 1)} if scale else {})


def test_dicts_in_place_and_control_flow(tmp_path):
    model = thinned(Mixed())
    fast = cigl.sparse_inference(model, example_inputs=mixed(4))
    cigl.save(model, tmp_path / "mixed.cigl", example_inputs=mixed(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        loaded = cigl.load(tmp_path / "mixed.cigl")
    for engine in (fast, loaded, copy.deepcopy(fast)):
        for size in (4, 7):
            inputs = mixed(size)
            with torch.no_grad():
                wanted = model(**copy.deepcopy(inputs))
            found = engine(**inputs)
            assert found["size"] == size
            assert found["rest"][2] is None
            for ours, theirs in ((found["z"], wanted["z"]), (found["rest"][0], wanted["rest"][0])):
                assert close(ours, theirs)
            assert close(found["rest"][1][0], wanted["rest"][1][0])
        with pytest.raises(CiglError, match=r"captured for inputs with batch\['x'\].shape\[0\] > 2"):
            engine(**mixed(2))
        with pytest.raises(CiglError, match="flag was True"):
            engine(**{**mixed(4), "flag": False})
        with pytest.raises(CiglError, match="scale is missing"):
            engine(**mixed(4, scale=False))
    if library.available():
        assert all_sparse(fast, **mixed(5))[1] == 3  # the matrix, too


def test_examples_of_one_sample_leave_the_batch_open():
    model = thinned(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    fast = cigl.sparse_inference(model, example_inputs=(torch.randn(1, 16),))
    x = torch.randn(5, 16)
    assert close(fast(x), model(x).detach())


def test_wrong_examples():
    model = nn.Linear(4, 4)
    with pytest.raises(CiglError, match="must be a tuple"):
        cigl.sparse_inference(model, example_inputs=torch.ones(2, 4))
    with pytest.raises(CiglError, match="can't be called with the example_inputs"):
        cigl.sparse_inference(model, example_inputs=(torch.ones(2, 5),))


def test_what_export_can_not_capture_falls_back():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    model = thinned(Branching())
    with pytest.warns(CiglWarning, match=r"torch.export can't capture .*x\.sum\(\) > 0.*one by one"):
        fast = cigl.sparse_inference(model, example_inputs=(torch.ones(2, 16),))
    for x in (torch.ones(2, 16), -torch.ones(2, 16)):
        assert close(fast(x), model(x).detach())


class Functional(nn.Module):
    """Layers by function."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 4, 3, 3))
        self.weight, self.bias = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(16))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.conv2d(x, self.kernel, None, stride=2, padding=1)
        norm = self.norm
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.1, norm.eps)
        x = F.relu(x, inplace=True)
        return F.linear(x.mean((2, 3)), self.weight, self.bias)


class OwnLinear(nn.Linear):
    pass


class OwnNorm(nn.BatchNorm2d):
    pass


@pytest.mark.parametrize(
    ("model", "shape", "layers"),
    [
        (Functional(), (2, 4, 8, 8), 2),
        (nn.Linear(16, 16), (3, 16), 1),
        (nn.Conv2d(4, 8, 3), (2, 4, 8, 8), 1),
        (nn.Sequential(OwnLinear(16, 16), nn.ReLU(), OwnLinear(16, 16)), (3, 16), 2),
        (nn.Sequential(nn.Conv2d(4, 8, 3), OwnNorm(8), nn.ReLU(inplace=True)), (2, 4, 8, 8), 1),
    ],
)
def test_layers_by_function_and_by_subclass(model, shape, layers):
    model, x = thinned(model), torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        fast = cigl.sparse_inference(model)
        with torch.no_grad():
            wanted = model(x)
        assert close(fast(x), wanted)
    assert all(isinstance(unit.operation, op.Weighted) or layers > 1 for unit in fast._network.units)
    if library.available():
        result, count = all_sparse(fast, x)
        assert close(result, wanted)
        assert count == layers


def test_a_dense_block_is_captured_without_examples():
    """As DenseNet's: concatenations, batch norms by function, ReLUs in place."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 4 * n) for n in range(3))
            self.convs = nn.ModuleList(nn.Conv2d(4 + 4 * n, 4, 3, padding=1) for n in range(3))

        def forward(self, x):
            seen = [x]
            for norm, conv in zip(self.norms, self.convs, strict=True):
                y = torch.cat(seen, 1)
                y = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False)
                seen.append(conv(F.relu(y, inplace=True)))
            return torch.cat(seen, 1)

    model, x = thinned(Block()), torch.randn(2, 4, 6, 6)
    fast = cigl.sparse_inference(model)
    assert not fast.notes
    with torch.no_grad():
        assert close(fast(x), model(x))
    assert not library.available() or all_sparse(fast, x)[1] == 3


def test_a_relu_in_place_behind_what_makes_new_memory():
    class Concatenated(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.relu = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3), nn.ReLU(inplace=True)

        def forward(self, x):
            left, right = self.left(x), self.right(x)
            return self.relu(torch.cat([left, right], 1)).sum(1, keepdim=True) * left + right

    model, x = thinned(Concatenated()), torch.randn(2, 4, 6, 6)
    fast = cigl.sparse_inference(model)
    assert not fast.notes
    with torch.no_grad():
        assert close(fast(x), model(x))


def test_checks_of_shapes_are_left_out(tmp_path):
    model, x = Checked().eval(), torch.randint(0, 10, (2, 4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CiglWarning)
        cigl.save(model, tmp_path / "checked.cigl")
    for engine in ("dense", "sparse"):
        with torch.no_grad():
            assert close(cigl.load(tmp_path / "checked.cigl", engine=engine)(x=x), model(x))


def test_what_runs_dense_is_said_once(recwarn):
    model = thinned(nn.Sequential(nn.RNN(16, 32, batch_first=True)))
    with pytest.warns(CiglWarning, match="0.weight_ih_l0, 0.weight_hh_l0: .*no sparse kernel for RNN"):
        cigl.sparse_inference(model)
    odd = thinned(nn.Sequential(nn.Conv3d(4, 8, 3)))
    if library.available():
        with pytest.warns(CiglWarning, match="0.weight: weights with many zeros run dense"):
            cigl.sparse_inference(odd)
    recwarn.clear()
    cigl.sparse_inference(nn.Sequential(nn.RNN(16, 32, batch_first=True)))  # no zeros
    assert not [each for each in recwarn if issubclass(each.category, CiglWarning)]


def test_an_untraceable_part_leaves_its_neighbours_sparse():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else self.inner(-x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.after = Part(), nn.Linear(16, 16)

        def forward(self, x):
            return self.after(self.part(x))

    model, x = thinned(nn.Sequential(nn.Linear(16, 16), Outer(), nn.Linear(16, 16))), torch.randn(3, 16)
    with pytest.warns(CiglWarning, match="1.part can't be traced"):
        fast = cigl.sparse_inference(model)
    with torch.no_grad():
        assert close(fast(x), model(x))
    assert [unit.name for unit in fast._network.units] == ["0", "1.part", "1.after", "2"]
    assert not library.available() or list(fast.plan()["layers"]) == ["1.part.inner"]


def large(name):
    tr = pytest.importorskip("transformers")
    return {
        "bert": lambda: tr.BertForSequenceClassification(tr.BertConfig()),
        "distilbert": lambda: tr.DistilBertForSequenceClassification(tr.DistilBertConfig()),
        "roberta": lambda: tr.RobertaForSequenceClassification(tr.RobertaConfig()),
        "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config()),
        "llama": lambda: tr.LlamaForCausalLM(
            tr.LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8)
        ),
        "t5": lambda: tr.T5ForConditionalGeneration(tr.T5Config()),
        "vit": lambda: tr.ViTForImageClassification(
            tr.ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
        ),
    }[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "gpt2", "llama", "t5", "vit"])
def test_large_transformers_models(name):
    torch.manual_seed(0)
    model = large(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() in (2, 4):  # not the 3-D tokens and positions of a ViT
                parameter.mul_(torch.rand(parameter.shape, generator=generator) >= 0.9)
    model.eval()

    def given(batch, length):
        return {"pixel_values": torch.randn(batch, 3, 224, 224)} if name == "vit" else inputs_of(name, batch, length)

    fast = cigl.sparse_inference(model, example_inputs=given(2, 32))
    assert not fast.notes
    for batch, length in ((1, 48), (2, 20)):
        inputs = given(batch, length)
        with torch.no_grad():
            wanted = model(**inputs)
        check(fast(**inputs), wanted)
