"""1-D networks, channels-last subgraphs and transposed convolutions: on the kernels, and equal to torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import close, forced, network_of, sparse
from torch import nn


def check(model: nn.Module, x: torch.Tensor, sparsely: list[str]) -> None:
    result, units = forced(sparse(model, 0.5), x)
    with torch.no_grad():
        assert close(result, model(x.clone()))
    assert units == sparsely


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3),
    st.integers(12, 40), st.sampled_from([1, 3, 8, 9]),
)  # fmt: skip
def test_convolutions_of_one_dimension(groups, inputs, kernel, stride, dilation, padding, length, images):
    conv = nn.Conv1d(groups * inputs, groups * 2, kernel, stride, padding, dilation, groups)
    net = nn.Sequential(conv, nn.BatchNorm1d(groups * 2), nn.SiLU(), nn.Conv1d(groups * 2, 3, 1))
    check(net, torch.randn(images, groups * inputs, length), ["Conv", "Conv"])


def test_a_residual_network_of_one_dimension_is_one_subgraph():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(4, 8, 5, padding="same"), nn.Conv1d(8, 8, 3, padding=1)
            self.pool, self.mean, self.head = nn.MaxPool1d(2), nn.AvgPool1d(3, 2, 1), nn.Conv1d(20, 4, 1)

        def forward(self, x):
            x = self.pool(F.relu(self.a(x)))
            x = F.gelu(self.b(x) + x)
            x = torch.cat([x, self.b(x), x[:, :4]], 1)
            return self.mean(self.head(x))

    net = Net()
    names = [type(unit.operation).__name__ for unit in network_of(net).units]
    assert names.count("Concat") == 1
    result, units = forced(sparse(net, 0.5), x := torch.randn(3, 4, 30))
    assert close(result, net(x).detach())
    assert units.count("Conv") == 4
    assert "AvgPool" in units


def test_unbatched_signals_run_in_torch():
    check(nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU()), torch.randn(3, 9), [])


class Block(nn.Module):
    """A ConvNeXt's: linear layers and a layer norm on channels that are turned to the end, and back."""

    def __init__(self, width: int, turn):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma, self.turn = nn.Parameter(torch.randn(width)), turn

    def forward(self, x):
        y = self.turn(self.depthwise(x))
        y = self.gamma * self.down(F.gelu(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "turn",
    [lambda x: x.permute(0, 2, 3, 1), lambda x: torch.permute(x, (0, 2, 3, 1)), lambda x: x.permute(0, -2, -1, 1)],
)
def test_a_convnext_is_one_subgraph(turn):
    net = nn.Sequential(nn.Conv2d(3, 6, 2, 2), Block(6, turn), Block(6, turn))
    for images in (1, 9):
        check(net, torch.randn(images, 3, 12, 14), ["Conv", *["Conv", "ChannelNorm", "Conv", "Conv"] * 2])


def test_what_reads_channels_last_gets_them():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear, self.norm = nn.Conv2d(3, 4, 1), nn.Linear(4, 5), nn.LayerNorm(5)

        def forward(self, x):
            y = self.norm(self.linear(self.conv(x).permute(0, 2, 3, 1)))
            return y.sum(1) + y.permute(0, 3, 1, 2).flatten(2).sum() + y.permute(0, 2, 1, 3).mean()

    result, units = forced(sparse(net := Net(), 0.5), x := torch.randn(2, 3, 5, 6))
    assert close(result, net(x).detach())
    assert units == ["Conv", "Conv", "ChannelNorm"]


def test_a_model_may_return_a_picture_in_both_forms():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 1), nn.Linear(4, 5)

        def forward(self, x):
            y = self.linear(self.conv(x).permute(0, 2, 3, 1))
            return {"last": y, "first": y.permute(0, 3, 1, 2)}

    result, _ = forced(sparse(net := Net(), 0.5), x := torch.randn(2, 3, 5, 6))
    expected = net(x)
    assert close(result["last"], expected["last"].detach())
    assert close(result["first"], expected["first"].detach())


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from([1, 3, 8, 9]))
def test_transposed_convolutions(data, images):
    kernel, stride, padding, more = [], [], [], []
    for _ in range(2):
        kernel.append(data.draw(st.integers(1, 5)))
        stride.append(data.draw(st.integers(1, 3)))
        padding.append(data.draw(st.integers(0, min(2, kernel[-1] - 1))))
        more.append(data.draw(st.integers(0, stride[-1] - 1)))
    layer = nn.ConvTranspose2d(4, 5, kernel, stride, padding, more)
    net = sparse(nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.BatchNorm2d(5), nn.ReLU()), 0.5)
    x = torch.randn(images, 3, data.draw(st.integers(6, 11)), data.draw(st.integers(6, 20)))
    with torch.no_grad():
        layer.weight *= torch.rand_like(layer.weight) < 0.5
        result, units = forced(net, x)
        assert close(result, net(x))
    taps = [-(-k // s) * s - k for k, s in zip(kernel, stride, strict=True)]
    reached = all(t + p >= m for t, p, m in zip(taps, padding, more, strict=True))
    assert ("ConvTranspose" in units) == reached  # pixels that only the bias reaches are left to torch
