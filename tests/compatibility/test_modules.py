"""Every layer of cases_modules.py trained, finished and run; every refusal with nothing changed."""

import copy

import cases_modules
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

import cigl

WORKS = [case.name for case in cases_modules.CASES if case.outcome == "works"]
REFUSED = [case.name for case in cases_modules.CASES if case.outcome == "refused"]


class Net(nn.Module):
    """A layer, called as ``call`` says, and a linear layer on the features that come out."""

    def __init__(self, layer, call=None, features=6):
        super().__init__()
        self.layer, self.call = layer, call or (lambda layer, x: layer(x))
        self.head = nn.Linear(features, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.call(self.layer, x)).flatten(1))


class Own(nn.Module):
    """Parameters that no layer of torch's holds: a matrix and a batch of matrices."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 8) / 3)
        self.experts = nn.Parameter(torch.randn(2, 6, 6) / 3)

    def forward(self, x):
        y = F.linear(x, self.matrix)
        return sum(F.linear(y, expert) for expert in self.experts)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.inner(x) + self.embed((x[:, 0] > 0).long()))


class Logits(nn.Module):
    """A Transformers model that returns the last token's logits alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return logits if logits.dim() == 2 else logits[:, -1]


def conv1d():
    transformers = pytest.importorskip("transformers")
    return Net(transformers.pytorch_utils.Conv1D(6, 8))


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, num_labels=3, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return Logits(transformers.GPT2ForSequenceClassification(config))


def experts(kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, head_dim=4,
        num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return Logits(getattr(transformers, f"{kind}ForCausalLM")(config))


def tied_linear():
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    net[2].weight = net[0].weight
    return net


def frozen():
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    net[0].weight.requires_grad_(False)
    return net


def images(layer, features):
    return Net(layer, lambda layer, x: layer(x.view(len(x), 2, 2, 2)), features)


def last(layer, x):
    return layer(x.view(len(x), 4, 2))[0][:, -1]


def tokens():
    return torch.randint(3, 11, (6, 5))


def vectors():
    return torch.randn(6, 8)


LINEAR = ["head.weight"]
WEIGHT = ["layer.weight", *LINEAR]
GATES = ["layer.weight_ih_l0", "layer.weight_hh_l0", *LINEAR]
CELL = ["layer.weight_ih", "layer.weight_hh", *LINEAR]
ATTENTION = [f"model.model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"]
EXPERTS = [f"model.model.layers.0.mlp.experts.{part}_proj" for part in ("gate_up", "down")]

# name: (model, data, layers=, what is made sparse), several where the name says several
EXAMPLES = {
    "`nn.Linear`": [(lambda: Net(nn.Linear(8, 6)), vectors, {}, WEIGHT)],
    "`nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`": [
        (lambda: Net(nn.Conv1d(4, 6, 2), lambda m, x: m(x.view(-1, 4, 2))), vectors, {}, WEIGHT),
        (lambda: images(nn.Conv2d(2, 4, 2, groups=2, padding=1), 36), vectors, {}, WEIGHT),
        (lambda: Net(nn.Conv3d(1, 6, 2), lambda m, x: m(x.view(-1, 1, 2, 2, 2))), vectors, {}, WEIGHT),
    ],
    "`nn.ConvTranspose1d`, `2d`, `3d`": [
        (lambda: Net(nn.ConvTranspose1d(8, 3, 2), lambda m, x: m(x[:, :, None])), vectors, {}, WEIGHT),
        (lambda: images(nn.ConvTranspose2d(2, 4, 2, groups=2), 36), vectors, {}, WEIGHT),
        (lambda: Net(nn.ConvTranspose3d(8, 6, 1), lambda m, x: m(x[..., None, None, None])), vectors, {},
         WEIGHT),
    ],
    "`nn.MultiheadAttention`": [
        (lambda: Net(nn.MultiheadAttention(4, 2, batch_first=True),
                     lambda m, x: m(*[x.view(-1, 2, 4)] * 3, need_weights=False)[0], 8), vectors, {},
         ["layer.in_proj_weight", "layer.out_proj.weight", *LINEAR]),
    ],
    "`nn.LSTM`, `nn.GRU`, `nn.RNN`": [
        (lambda: Net(nn.LSTM(2, 6, batch_first=True), last), vectors, {}, GATES),
        (lambda: Net(nn.LSTM(2, 6, num_layers=2, bidirectional=True, proj_size=3, batch_first=True), last), vectors, {},
         [f"layer.weight_{p}_l{n}" for n in ("0", "0_reverse", "1", "1_reverse") for p in ("ih", "hh", "hr")] + LINEAR),
        (lambda: Net(nn.GRU(2, 6, batch_first=True), last), vectors, {}, GATES),
        (lambda: Net(nn.RNN(2, 6, batch_first=True), last), vectors, {}, GATES),
    ],
    "`nn.LSTMCell`, `nn.GRUCell`, `nn.RNNCell`": [
        (lambda: Net(nn.LSTMCell(8, 6), lambda layer, x: layer(x)[0]), vectors, {}, CELL),
        (lambda: Net(nn.GRUCell(8, 6)), vectors, {}, CELL),
        (lambda: Net(nn.RNNCell(8, 6)), vectors, {}, CELL),
    ],
    "`nn.Bilinear`": [
        (lambda: Net(nn.Bilinear(3, 5, 6), lambda m, x: m(x[:, :3], x[:, 3:])), vectors, {}, WEIGHT),
    ],
    "Transformers' `Conv1D` (GPT-2)": [
        (conv1d, vectors, {}, WEIGHT),
        (gpt2, tokens, {"model.transformer.wte": False, "model.transformer.wpe": False},
         [f"model.transformer.h.0.{part}.weight" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
         + ["model.score.weight"]),
    ],
    "Transformers' experts (Mixtral)": [
        (lambda: experts("Mixtral"), tokens, {}, [*ATTENTION, *EXPERTS, "model.lm_head.weight"]),
    ],
    "Transformers' experts (GPT-OSS)": [
        (lambda: experts("GptOss"), tokens, {}, [*ATTENTION, *EXPERTS, "model.lm_head.weight"]),
    ],
    "`nn.Embedding`": [
        (lambda: Net(nn.Embedding(11, 4), features=20), tokens, {"layer": False}, LINEAR),
        (lambda: Net(nn.Embedding(11, 4), features=20), tokens, {"layer": True}, WEIGHT),
        (lambda: Net(nn.Embedding(11, 4), features=20), tokens, {"layer": 0.5}, WEIGHT),
    ],
    "a weight tied to an embedding": [
        (Tied, vectors, {}, ["inner.weight"]),
        (Tied, vectors, {"head": True}, ["embed.weight", "inner.weight"]),
    ],
    "tied linear layers": [(tied_linear, vectors, {}, ["0.weight", "3.weight"])],
    "an `nn.Parameter` of your own": [
        (lambda: Net(Own()), vectors, {"layer.*": False}, LINEAR),
        (lambda: Net(Own()), vectors, {"layer.*": True}, ["layer.matrix", "layer.experts", *LINEAR]),
    ],
    "a frozen weight": [(frozen, vectors, {}, ["2.weight"])],
    "`parametrizations.weight_norm`, `spectral_norm`": [
        (lambda: Net(parametrizations.weight_norm(nn.Linear(8, 6))), vectors, {}, LINEAR),
        (lambda: Net(parametrizations.spectral_norm(nn.Conv1d(4, 6, 2)), lambda m, x: m(x.view(-1, 4, 2))), vectors, {},
         LINEAR),
    ],
}  # fmt: skip

REFUSALS = {
    "`parametrizations.orthogonal` on request": (
        lambda: Net(parametrizations.orthogonal(nn.Linear(6, 6))),
        {"layer.*": True},
        "need not be zeros of the weight",
    ),
    "a parametrization of `nn.LSTM`": (
        lambda: Net(parametrizations.weight_norm(nn.LSTM(2, 6, batch_first=True), "weight_hh_l0"), last),
        {},
        "keeps a computed weight",
    ),
    "old-style `weight_norm`": (lambda: Net(old_weight_norm(nn.Linear(8, 6))), {}, "parametrizations.weight_norm"),
    "old-style `spectral_norm`": (
        lambda: Net(old_spectral_norm(nn.Linear(8, 6))),
        {},
        "parametrizations.spectral_norm",
    ),
    "`torch.nn.utils.prune`": (
        lambda: Net(prune.random_unstructured(nn.Linear(8, 6), "weight", 0.5)),
        {},
        "prune.remove",
    ),
    "lazy layers without a shape": (lambda: Net(nn.LazyLinear(6)), {}, "run one batch"),
    "`nn.Embedding(sparse=True)` on request": (
        lambda: Net(nn.Embedding(11, 4, sparse=True)),
        {"layer": True},
        "sparse=False",
    ),
}


def test_every_case_is_run_here():
    assert set(WORKS) == set(EXAMPLES)
    assert set(REFUSED) == set(REFUSALS)


def losses(model, optimizer, x):
    torch.manual_seed(0)  # of the model's own dropout
    for _ in range(18):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3)
        loss.backward()
        optimizer.step()
        yield loss.item()


def attached(model, layers, kernels):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    times = {"epochs": 6, "steps_per_epoch": 3, "update_every": 2, "average_from": 0.75}
    return optimizer, cigl.attach(model, optimizer, sparsity=0.6, rescale=True, layers=layers, kernels=kernels, **times)


@pytest.mark.filterwarnings("ignore::cigl.CiglWarning", "ignore::FutureWarning", "ignore:.*oneDNN")
@pytest.mark.parametrize(
    "example", [pytest.param(e, id=f"{name}-{n}") for name in WORKS for n, e in enumerate(EXAMPLES[name])]
)
def test_it_trains_with_exact_zeros_and_runs(example, tmp_path):
    make, data, layers, names = example
    model, x = make(), data()
    twins = [copy.deepcopy(model) for _ in range(2)]
    optimizer, sparse = attached(model, layers, "auto")
    assert [layer.name for layer in sparse.layers] == names
    size = sum(layer.size for layer in sparse.layers)
    active = sum(int(layer.mask.sum()) for layer in sparse.layers)
    assert active == round(0.4 * size)
    seen = []
    for loss in losses(model, optimizer, x):
        seen.append(loss)
        assert all(layer.weight[~layer.mask].eq(0).all() for layer in sparse.layers)
    assert min(seen[-3:]) < seen[0]
    assert sum(int(layer.mask.sum()) for layer in sparse.layers) == active
    assert sparse.explored > sparse.density  # the topology has moved
    assert "total" in str(sparse.summary())
    for twin, kernels in zip(twins, ("masked", "sparse"), strict=True):  # no kernel misreads a weight
        other, _ = attached(twin, layers, kernels)
        first = [loss for loss, _ in zip(losses(twin, other, x), range(6), strict=False)]
        assert first == pytest.approx(seen[:6], rel=1e-4)

    finished = sparse.finalize().eval()
    weights = dict(finished.named_parameters())
    assert all(weights[layer.name][~layer.mask].eq(0).all() for layer in sparse.layers)
    with torch.no_grad():
        expected = finished(x)
    fast = cigl.sparse_inference(finished)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
    cigl.save(finished, tmp_path / "model.cigl")
    again = cigl.load(tmp_path / "model.cigl", into=copy.deepcopy(finished))
    torch.testing.assert_close(again(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::cigl.CiglWarning")
@pytest.mark.parametrize("name", ["`nn.LSTM`, `nn.GRU`, `nn.RNN`", "`nn.Bilinear`", "Transformers' experts (Mixtral)"])
def test_training_resumes_bit_for_bit(name):
    make, data, layers, _ = EXAMPLES[name][0]
    model, x = make(), data()
    twin = copy.deepcopy(model)
    optimizer, sparse = attached(model, layers, "auto")
    seen = losses(model, optimizer, x)
    for _ in range(7):
        next(seen)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), sparse.state_dict()))
    expected = [next(seen) for _ in range(6)]
    other, resumed = attached(twin, layers, "auto")
    for part, saved in zip((twin, other, resumed), state, strict=True):
        part.load_state_dict(saved)
    again = losses(twin, other, x)
    assert [next(again) for _ in range(6)] == expected


@pytest.mark.filterwarnings("ignore::cigl.CiglWarning")
def test_a_density_for_all_of_gpt2_is_not_refused_for_rounding():
    model = gpt2()
    sparse = cigl.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.1), "static", sparsity=0.9, epochs=1, steps_per_epoch=2,
        layers={"*.c_*": 0.1, "*.score": False},
    )  # fmt: skip
    size = sum(layer.size for layer in sparse.layers)
    assert sum(int(layer.mask.sum()) for layer in sparse.layers) == round(0.1 * size)


@pytest.mark.filterwarnings("ignore::cigl.CiglWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_nothing_changed(name):
    make, layers, message = REFUSALS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {key: value for key, value in model.state_dict().items() if type(value.data) is torch.Tensor}
    copies = {key: value.clone() for key, value in before.items() if not isinstance(value, nn.UninitializedParameter)}
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    with pytest.raises(cigl.CiglError, match=message) as error:
        cigl.attach(model, optimizer, sparsity=0.5, epochs=2, steps_per_epoch=2, layers=layers)
    assert str(error.value).count(". ") == 0  # one sentence
    assert hooks == [len(module._forward_pre_hooks) for module in model.modules()]
    assert all(torch.equal(model.state_dict()[key], value) for key, value in copies.items())
