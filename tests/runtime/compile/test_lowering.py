"""Lowering asks for the right operations. Computed by torch_program.py, so that no kernel is involved."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
import torch_program
from hypothesis import HealthCheck, given, settings
from nets import close, dense_result, drawn_nets, forced, network_of, sparse
from torch import nn

import cigl
from cigl.runtime.compile.lowering import Untraceable


@pytest.fixture(autouse=True)
def _in_torch(monkeypatch):
    torch_program.install(monkeypatch)


def kinds(model):
    return [type(unit.operation).__name__ for unit in network_of(model).units]


class Calls(nn.Module):
    """A forward from a function of (self, x)."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def check(model, *inputs, sparsely=None):
    sparse(model, 0.5)
    result, units = forced(model, *inputs)
    with torch.no_grad():
        assert close(result, model(*(each.clone() for each in inputs)))
    if sparsely is not None:
        assert units == sparsely


@pytest.mark.parametrize(
    "relu",
    [
        lambda self, x: F.relu(x),
        lambda self, x: F.relu(x, True),
        lambda self, x: torch.relu(x),
        lambda self, x: x.relu(),
        lambda self, x: x.relu_(),
        lambda self, x: F.relu(input=x, inplace=True),
    ],
)
def test_every_way_to_say_relu(relu):
    model = Calls(lambda self, x: relu(self, self.conv(x)), conv=nn.Conv2d(3, 4, 3))
    check(model, torch.randn(2, 3, 6, 6))
    assert kinds(model) == ["Conv"]


@pytest.mark.parametrize(
    "add",
    [operator.add, operator.iadd, torch.add, lambda a, b: a.add(b), lambda a, b: a.add_(b), lambda a, b: b + a],
)
def test_every_way_to_add(add):
    model = Calls(lambda self, x: F.relu(add(self.conv(x), x)), conv=nn.Conv2d(3, 3, 3, padding=1))
    check(model, torch.randn(2, 3, 6, 6), sparsely=["Conv"])


@pytest.mark.parametrize(
    "flat",
    [
        lambda self, x: x.flatten(1),
        lambda self, x: torch.flatten(x, 1),
        lambda self, x: x.view(x.size(0), -1),
        lambda self, x: x.view(x.shape[0], -1),
        lambda self, x: x.reshape(-1, 4 * 4 * 4),
        lambda self, x: x.reshape(len(x), -1) if False else x.reshape((x.size()[0], -1)),
    ],
)
def test_every_way_to_flatten(flat):
    model = Calls(lambda self, x: self.last(flat(self, self.conv(x))), conv=nn.Conv2d(3, 4, 3), last=nn.Linear(64, 5))
    check(model, torch.randn(2, 3, 6, 6), sparsely=["Conv", "InTorch", "Linear"])


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        (nn.MaxPool2d(2), "MaxPool"),
        (nn.MaxPool2d(3, 2, 1), "MaxPool"),
        (nn.AvgPool2d(2, count_include_pad=False), "AvgPool"),
        (nn.AvgPool2d((3, 2), 1, (1, 0)), "AvgPool"),
        (nn.AdaptiveAvgPool2d(1), "Mean"),
        (nn.AdaptiveAvgPool2d((1, 1)), "Mean"),
        (Calls(lambda self, x: F.max_pool2d(x, 2)), "MaxPool"),
        (Calls(lambda self, x: F.avg_pool2d(x, 2, 1)), "AvgPool"),
        (Calls(lambda self, x: F.adaptive_avg_pool2d(x, 1)), "Mean"),
        (Calls(lambda self, x: x.mean((2, 3))), "Mean"),
        (Calls(lambda self, x: x.mean(dim=[-1, -2], keepdim=True)), "Mean"),
        (Calls(lambda self, x: torch.mean(x, (3, 2))), "Mean"),
        # outside of what the kernels do: torch runs them
        (nn.MaxPool2d(3, 2, ceil_mode=True), None),
        (nn.MaxPool2d(2, dilation=2), None),
        (nn.AvgPool2d(2, divisor_override=3), None),
        (nn.AdaptiveAvgPool2d(2), None),
        (nn.AdaptiveMaxPool2d(1), None),
        (Calls(lambda self, x: x.mean(1)), None),
        (Calls(lambda self, x: x.mean()), None),
        (Calls(lambda self, x: x.mean((1, 2))), None),
    ],
)
def test_pooling(pool, kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), pool)
    check(model, torch.randn(2, 3, 8, 9), sparsely=["Conv"] + [kind] * (kind is not None))


@pytest.mark.parametrize(
    ("conv", "fits"),
    [
        (nn.Conv2d(4, 6, 3, (2, 1), (0, 2)), True),
        (nn.Conv2d(4, 6, (1, 5), padding="same"), True),
        (nn.Conv2d(4, 6, 3, padding="valid"), True),
        (nn.Conv2d(4, 6, 2, padding="same"), False),
        (nn.Conv2d(4, 6, 3, dilation=2), True),
        (nn.Conv2d(4, 6, 3, groups=2), True),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), False),
    ],
)
def test_convolutions(conv, fits):
    model = nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU())
    check(model, torch.randn(2, 4, 8, 9))
    assert ("Conv" in forced(model, torch.randn(2, 4, 8, 9))[1]) == fits


def test_the_papers_networks_are_fused_into_their_layers():
    wrn = kinds(cigl.models.build("wrn-22-2", 10, (3, 32, 32)))
    assert wrn == ["Conv"] * 22 + ["Mean", "InTorch", "Linear"]  # no batch norm, ReLU or sum is left of its own
    resnet = kinds(cigl.models.build("resnet50", 10, (3, 224, 224)))
    assert resnet == ["Conv", "MaxPool"] + ["Conv"] * 52 + ["Mean", "InTorch", "Linear"]


def test_pre_activation_keeps_the_sum_only_where_it_is_read_again():
    units = network_of(cigl.models.build("wrn-10-1", 10, (3, 8, 8))).units
    convs = [unit.operation for unit in units if type(unit.operation).__name__ == "Conv"]
    assert [conv.keep for conv in convs if conv.norm is not None] == [True, False, False, False]
    assert all(conv.activation or conv.norm is not None or not conv.add for conv in convs)


def test_a_batch_norm_that_others_look_behind_is_not_folded():
    model = Calls(
        lambda self, x: (y := self.conv(x)) * 2 + self.norm(y), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)
    )
    check(model, torch.randn(2, 3, 6, 6), sparsely=["Conv", "Add"])  # the layer writes both


def test_batch_norm_without_statistics_stays_in_torch():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False))
    result, units = forced(model.eval(), x := torch.randn(5, 4))
    assert units == ["Linear"]
    assert close(result, model(x))


def test_linear_over_more_dimensions():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    check(model, torch.randn(3, 5, 4), sparsely=["Linear", "Linear"])
    check(model, torch.randn(4), sparsely=["Linear", "Linear"])
    check(model, torch.randn(2, 3, 5, 4), sparsely=[])  # a picture to the kernels


def test_a_folded_linear_layer_refuses_what_the_folding_is_wrong_for():
    model = sparse(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), 0.5)
    with pytest.raises(RuntimeError, match="rows, features"):
        forced(model, torch.randn(2, 6, 4))


def test_broadcast_sums_are_torchs():
    model = Calls(
        lambda self, x: self.a(x) + self.b(x).mean((2, 3), keepdim=True), a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(3, 4, 1)
    )
    check(model, torch.randn(2, 3, 6, 6), sparsely=["Conv", "Mean"])


def test_buffers_and_numbers_in_sums():
    model = Calls(lambda self, x: self.a(x) + self.shift + 1 + x.size(0), a=nn.Conv2d(3, 4, 1))
    model.register_buffer("shift", torch.randn(4, 1, 1))
    check(model, torch.randn(2, 3, 6, 6))


def test_a_module_that_is_called_twice_is_packed_once():
    model = Calls(lambda self, x: self.a(torch.sin(self.a(x))), a=nn.Linear(4, 4))
    check(model, torch.randn(2, 4), sparsely=["Linear", "Linear"])
    first, _, second = network_of(model).units
    assert first.operation.weight is second.operation.weight
    assert first.name != second.name


def test_several_inputs_and_nested_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x, y, scale=None):
            out = self.a(x) + y
            return {"sum": out if scale is None else out * scale, "parts": [self.a(x), (y, 7)]}

    model, x, y = Two().eval(), torch.randn(2, 4), torch.randn(2, 3)
    result, _ = forced(model, x, y)
    expected = model(x, y)
    assert close(result["sum"], expected["sum"])
    assert close(result["parts"][0], expected["parts"][0])
    assert result["parts"][1][0] is y
    assert result["parts"][1][1] == 7


def test_changes_in_place_reach_all_later_readers():
    def forward(self, x):
        y = self.conv(x)
        z = self.relu(y)  # y has changed, too
        z[:, 0] = 3
        y += 1
        return y + z

    check(Calls(forward, conv=nn.Conv2d(3, 3, 1), relu=nn.ReLU(inplace=True)), torch.randn(2, 3, 4, 4))


@pytest.mark.parametrize(
    "relu",
    [
        lambda self, y: self.relu(y),
        lambda self, y: self.relu(input=y),
        lambda self, y: F.relu(input=y, inplace=True),
        lambda self, y: y.relu_(),
    ],
)
def test_what_was_changed_in_place_is_read_as_changed(relu):
    model = Calls(lambda self, x: self.relu6(relu(self, y := self.conv(x))) + y, conv=nn.Conv2d(3, 3, 1),
                  relu=nn.ReLU(inplace=True), relu6=nn.ReLU6())  # fmt: skip
    check(model, torch.randn(2, 3, 4, 4), sparsely=["Conv", "Activation", "Add"])


def test_other_names_of_a_sum_in_place_see_it():
    def forward(self, x):
        y = self.conv(x)
        z = y
        z += x
        return self.relu(z) - y  # fx alone would subtract conv(x)

    model = Calls(forward, conv=nn.Conv2d(3, 3, 1), relu=nn.ReLU())
    check(model, torch.randn(2, 3, 4, 4), sparsely=[])
    with pytest.raises(Untraceable, match="iadd changes in place"):
        network_of(model)


def test_other_names_of_a_number_keep_it():
    def forward(self, x):
        more = count = x.size(0)
        more += 1
        return self.conv(x) * more / count

    check(Calls(forward, conv=nn.Conv2d(3, 3, 1)), torch.randn(2, 3, 4, 4))


def test_a_changed_input_is_not_the_callers():
    x = torch.randn(2, 3)
    before = x.clone()
    forced(Calls(lambda self, x: x.mul_(2)), x)
    assert torch.equal(x, before)


def test_a_change_in_place_behind_a_view_is_refused():
    def forward(self, x):
        y = self.conv(x)
        half = y[:, :1]
        half.relu_()
        return y

    with pytest.raises(Untraceable, match="in place"):
        network_of(Calls(forward, conv=nn.Conv2d(3, 3, 1)))


def test_what_can_not_be_traced_runs_whole_and_the_line_is_named():
    class Branching(nn.Module):
        def forward(self, x):
            x += 1
            if x.sum() > 0:
                return x
            return -x

    model = sparse(nn.Sequential(nn.Linear(4, 4), Branching(), nn.Linear(4, 2)), 0.5)
    network = network_of(model)
    assert [unit.name for unit in network.units] == ["0", "1", "2"]
    assert "if x.sum() > 0:" in network.notes[0]
    assert __file__ in network.notes[0]
    check(model, torch.randn(3, 4), sparsely=["Linear", "Linear"])
    with pytest.raises(Untraceable, match="the model can't be traced"):
        network_of(Branching())
    check(Branching(), torch.randn(3, 4), sparsely=[])


def test_hooks_are_heard():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    check(nn.Sequential(layer, nn.ReLU()), torch.randn(2, 4), sparsely=["Relu"])


def test_hooks_and_a_forward_of_the_models_own_are_heard():
    hooked, early, own = (nn.Sequential(nn.Linear(4, 3), nn.ReLU()) for _ in range(3))
    hooked.register_forward_hook(lambda module, inputs, output: output * 2)
    early.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    own.forward = lambda x: x * 2
    for model in (hooked, early, own):
        check(model, torch.randn(2, 4), sparsely=[])
        with pytest.raises(Untraceable, match="hooks"):
            network_of(model)
    own_layer = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    own_layer[0].forward = lambda x: x * 2
    check(own_layer, torch.randn(2, 4), sparsely=["Relu"])


def test_other_operations_run_between_subgraphs():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Softplus(),
        nn.Conv2d(4, 4, 3),
        nn.Flatten(),
        nn.LogSoftmax(1),
        nn.Linear(64, 3),
    )
    check(model, torch.randn(2, 3, 8, 8), sparsely=["Conv", "Conv", "InTorch", "Linear"])


@pytest.mark.parametrize(
    ("act", "name"),
    [
        *((nn.ReLU6(), "relu6"), (nn.SiLU(True), "silu"), (nn.GELU(), "gelu"), (nn.GELU("tanh"), "gelu_tanh")),
        *((nn.Hardswish(True), "hardswish"), (nn.Hardsigmoid(), "hardsigmoid"), (nn.Sigmoid(), "sigmoid")),
        *((nn.Tanh(), "tanh"), (nn.Mish(), "mish")),
        *((F.relu6, "relu6"), (F.silu, "silu"), (F.hardswish, "hardswish"), (F.hardsigmoid, "hardsigmoid")),
        (F.gelu, "gelu"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh"),
        *((torch.sigmoid, "sigmoid"), (lambda x: x.sigmoid_(), "sigmoid"), (torch.tanh, "tanh")),
        *((lambda x: x.clamp(0, 6), "relu6"), (lambda x: F.hardtanh(x, 0.0, 6.0), "relu6")),
        *((lambda x: x.clamp(0, 5), None), (lambda x: x.clamp(min=0), None), (F.hardtanh, None)),
    ],
)
def test_every_way_to_say_an_activation(act, name):
    layers = {"act": act} if isinstance(act, nn.Module) else {}
    model = Calls(lambda self, x: (self.act if layers else act)(self.conv(x)), conv=nn.Conv2d(3, 4, 3), **layers)
    check(model, 4 * torch.randn(2, 3, 6, 6))
    units = network_of(model).units
    assert units[0].operation.activation == (name or "")
    assert len(units) == (1 if name else 2)


def test_squeeze_and_excitation_with_its_sum():
    def forward(self, x):
        y = self.conv(x)
        return F.relu(y * self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))).sigmoid() + x)

    model = Calls(forward, conv=nn.Conv2d(6, 6, 3, padding=1, groups=6), down=nn.Conv2d(6, 2, 1), up=nn.Conv2d(2, 6, 1))
    check(model, torch.randn(2, 6, 5, 7), sparsely=["Conv", "Mean", "Conv", "Conv", "Multiply"])


def test_concatenations():
    def forward(self, x):
        a = self.a(x)
        return self.b(torch.cat([x, a, x.flip(0)], 1)).amax() * torch.cat((a, a[:, :1]), dim=1)

    model = Calls(forward, a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(10, 2, 1))
    check(model, torch.randn(2, 3, 5, 7), sparsely=["Conv", "Concat", "Conv", "Concat"])
    rows = Calls(lambda self, x: torch.cat([self.a(x), x], -1) + torch.cat([x, x], 0).mean(), a=nn.Linear(3, 4))
    check(rows, torch.randn(2, 5, 3), sparsely=["Linear", "Concat"])


def test_a_transformers_operations_on_rows():
    def forward(self, x):
        y = self.norm(x + self.a(x))
        return self.b(F.gelu(self.a(y))) + y + self.bias

    model = Calls(forward, norm=nn.LayerNorm(8), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    model.register_buffer("bias", torch.randn(8))
    check(model, torch.randn(2, 5, 8), sparsely=["Linear", "LayerNorm", "Linear", "Linear"])


def test_a_constant_is_added_in_torch_and_the_layer_stays_sparse():
    model = Calls(lambda self, x: self.a(x) + self.position, a=nn.Linear(8, 8))
    model.register_buffer("position", torch.randn(5, 8))
    check(model, torch.randn(2, 5, 8), sparsely=["Linear"])


def test_attention_runs_in_torch_and_its_neighbours_sparse():
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    check(model, torch.randn(2, 5, 16))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_nets())
def test_any_net_computes_the_same(net_and_input):
    net, x = net_and_input
    expected = dense_result(net, x)
    result, _ = forced(net, x)
    assert close(result, expected)
