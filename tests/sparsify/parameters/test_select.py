import pytest
import torch
from loops import fans
from torch import nn

from cigl import CiglError, CiglWarning
from cigl.sparsify.parameters.select import select


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight


def names(model, layers=None):
    return [selected.name for selected in select(model, layers)]


def test_weights_of_known_layers_are_taken():
    model = nn.ModuleDict({
        "linear": nn.Linear(4, 4), "conv1": nn.Conv1d(4, 4, 3), "conv3": nn.Conv3d(4, 4, 3),
        "up": nn.ConvTranspose2d(4, 4, 3), "norm": nn.LayerNorm(4), "bn": nn.BatchNorm2d(4),
        "attention": nn.MultiheadAttention(8, 2), "separate": nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
        "embed": nn.Embedding(5, 4), "lstm": nn.LSTM(4, 6, proj_size=4, bidirectional=True),
        "cell": nn.GRUCell(4, 4), "bilinear": nn.Bilinear(4, 4, 2),
    })  # fmt: skip
    assert set(names(model)) == {
        "linear.weight", "conv1.weight", "conv3.weight", "up.weight", "attention.in_proj_weight",
        "attention.out_proj.weight", "separate.q_proj_weight", "separate.k_proj_weight", "separate.v_proj_weight",
        "separate.out_proj.weight", "cell.weight_ih", "cell.weight_hh", "bilinear.weight",
        *(f"lstm.weight_{part}_l0{side}" for part in ("ih", "hh", "hr") for side in ("", "_reverse")),
    }  # fmt: skip


def test_tied_weights_are_one_and_those_of_an_embedding_are_left_out():
    model = Tied()
    chosen = select(model)
    assert [s.name for s in chosen] == ["inner.weight"]
    assert [o.module for o in chosen[0].owners] == [model.inner, model.again]
    assert names(model, {"embed": 0.5}) == ["embed.weight", "inner.weight"]


def test_frozen_weights_are_taken_only_when_asked_for():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    assert names(model) == ["1.weight"]
    assert names(model, {"0.weight": 0.5}) == ["0.weight", "1.weight"]


def test_globs_match_parameters_and_modules_and_the_last_one_counts():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert names(model, {"0": False, "2.*": False}) == ["1.weight"]
    assert names(model, {"*": False, "1": 0.5}) == ["1.weight"]
    assert [s.density for s in select(model, {"1": 0.5})] == [None, 0.5, None]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"conv*": False}, r"layers\['conv\*'\] matches no weight; the model has 0.weight"),
        ({"0.bias": 0.5}, "matches no weight"),
        ({"0": 1.5}, "give True, False or a density above 0 and up to 1"),
        ({"0": 0.0}, "give True, False or a density"),
        ({"0": "yes"}, "give True, False or a density"),
        ({"*": False}, "nothing to make sparse"),
    ],
)
def test_bad_choices(layers, message):
    with pytest.raises(CiglError, match=message):
        select(nn.Sequential(nn.Linear(4, 4)), layers)


def test_models_that_cannot_be_sparse():
    with pytest.raises(CiglError, match="nothing to make sparse"):
        select(nn.BatchNorm1d(3))
    with pytest.raises(CiglError, match="run one batch through the model"):
        select(nn.LazyLinear(3))
    with pytest.raises(CiglError, match="sparse=False"):
        select(nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4)), {"0": 0.5})
    overlapping = nn.Linear(4, 4)
    overlapping.weight = nn.Parameter(torch.ones(1, 4).expand(4, 4))
    with pytest.raises(CiglError, match="overlaps itself"):
        select(overlapping)


def test_positions_have_32_bits():
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones(1).expand(1 << 16, 1 << 16))  # without the memory
    with pytest.raises(CiglError, match="weight has 4,294,967,296 elements, and positions have 32 bits"):
        select(model)
    model.weight = nn.Parameter(torch.ones(1).expand((1 << 16) - 1, 1 << 16))
    with pytest.raises(CiglError, match="overlaps itself"):  # not its size
        select(model)


def test_tensors_that_are_not_plain_are_refused():
    class Sharded(torch.Tensor):
        pass

    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Sharded))
    with pytest.raises(CiglError, match="weight holds a Sharded, not a plain tensor"):
        select(model)


def test_fans_by_hand():
    conv = nn.Conv2d(4, 6, 3, groups=2)  # weight (6, 2, 3, 3)
    mask = torch.zeros(6, 2, 3, 3, dtype=torch.bool)
    mask[0, 1] = True  # group 0: output 0 uses input 1 with 9 weights
    mask[5, 0, 0, 0] = True  # group 1: output 5 uses input 2
    fan_in, fan_out = fans(select(conv)[0].layout, mask)
    assert fan_in.tolist() == [9, 0, 0, 0, 0, 1]
    assert fan_out.tolist() == [0, 9, 1, 0]
    up = nn.ConvTranspose2d(4, 6, 3, groups=2)  # weight (4, 3, 3, 3)
    mask = torch.zeros(4, 3, 3, 3, dtype=torch.bool)
    mask[2, 1, 0, :2] = True  # group 1: input 2, output 3 + 1
    fan_in, fan_out = fans(select(up)[0].layout, mask)
    assert fan_in.tolist() == [0, 0, 0, 0, 2, 0]
    assert fan_out.tolist() == [0, 0, 2, 0]


def test_a_tied_weight_may_be_named_by_any_of_its_names():
    model = Tied()
    assert names(model, {"again": False, "head": 0.5}) == ["embed.weight"]


def test_a_parametrized_weight_stays_dense_and_is_told_of():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    with pytest.warns(CiglWarning, match="the weight of 0 is computed from other parameters"):
        assert names(model) == ["1.weight"]
