"""Networks for the tests of files: a corner of torch each."""

import torch
import torch.nn.functional as F
from torch import nn


def sparsen(model, share=0.9):
    """Zeros at random places of the weights, and batch norms that do something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) > share)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model.eval()


class Functional(nn.Module):
    """Everything by function and method, with parameters of its own and an optional argument."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1, bias=False)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.register_buffer("shift", torch.rand(1, 8, 1, 1), persistent=False)
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x, mask=None, double=False):
        x = self.conv(x) * self.scale - self.shift
        if mask is not None:
            x = x * mask
        x = F.max_pool2d(F.relu(x), 2)
        left, right = torch.chunk(x, 2, dim=1)
        x = torch.cat([left.sigmoid(), F.gelu(right)], 1) + F.avg_pool2d(x, 3, 1, 1)
        x = F.dropout(F.adaptive_avg_pool2d(x, (2, 2)), 0.5, self.training)
        y = x.permute(0, 2, 3, 1).contiguous().view(x.shape[0], -1)
        x = torch.flatten(x, 1)[:, : y.size(1)]
        x += y.reshape(x.size(0), -1).mean(1, keepdim=True)
        return F.log_softmax(self.head(x), dim=-1)


class TwoInputsTwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 20), nn.Linear(6, 20)

    def forward(self, x, y):
        z = self.a(x) + self.b(y)
        return {"sum": z, "parts": (z.relu(), [z.tanh()])}


class SumInPlace(nn.Module):
    """Two names of one tensor, which torch.fx alone takes for two tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = z = self.layer(x)
        z += x
        return y.relu() - y * z


class InPlace(nn.Module):
    """A ReLU in place changes what the shortcut sees, too."""

    def __init__(self):
        super().__init__()
        self.norm, self.relu, self.conv = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding="same")

    def forward(self, x):
        y = self.norm(x)
        return self.conv(self.relu(y)) + y


class Tied(nn.Module):
    """One module at two places, one weight in two modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(30, 30)
        self.again = self.first
        self.other = nn.Linear(30, 30)
        self.other.weight = self.first.weight

    def forward(self, x):
        return self.other(self.again(self.first(x)).relu())


class Attention(nn.Module):
    """Outside of what a file can hold."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Branching(nn.Module):
    """Can't be traced."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 40)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


class Checked(nn.Module):
    """With checks of its own. (Not in a test file: there pytest writes asserts anew.)"""

    def __init__(self):
        super().__init__()
        self.table, self.up = nn.Embedding(10, 4), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.larger = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x):
        torch._assert(x.ndim == 3, "three dimensions")
        assert x.shape[1] == 4, "four rows"
        y = self.table(x).permute(0, 3, 1, 2)
        y = self.larger(self.up(y))
        q = y.flatten(2)
        return F.scaled_dot_product_attention(q, q, q).reshape_as(y)


def layers():
    """A chain through most of the modules that the tables have."""
    return nn.Sequential(
        nn.ZeroPad2d((1, 2, 0, 1)),
        nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), padding_mode="reflect"),
        nn.BatchNorm2d(8, eps=1e-3, momentum=None), nn.SiLU(), nn.Conv2d(8, 16, 3, groups=4, padding="valid"),
        nn.GroupNorm(4, 16), nn.Hardswish(), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.LeakyReLU(0.2), nn.Identity(),
        nn.BatchNorm2d(16, affine=False), nn.ReLU6(), nn.AvgPool2d(2, 1, 1, count_include_pad=False), nn.Mish(),
        nn.PReLU(16), nn.ELU(0.5), nn.Dropout2d(0.3), nn.AdaptiveMaxPool2d((None, 3)), nn.AdaptiveAvgPool2d((2, None)),
        nn.Flatten(2), nn.Conv1d(16, 10, 3, bias=False), nn.BatchNorm1d(10), nn.Hardsigmoid(), nn.MaxPool1d(2),
        nn.Flatten(), nn.LayerNorm(20), nn.GELU("tanh"), nn.Linear(20, 12, bias=False),
        nn.LayerNorm(12, elementwise_affine=False), nn.Tanh(), nn.Linear(12, 7), nn.Sigmoid(), nn.Dropout(0.1),
        nn.Softmax(-1), nn.LogSoftmax(1),
    )  # fmt: skip
