"""Mobile, grouped, dense and modern convolutional networks, sparse: our engine against ONNX Runtime, which multiplies
the zeros. 224 pixels; all weights but those of depthwise convolutions are zero at random; random batch norms.

python benchmarks/conv_networks.py [--network NAME ...] [--batch 1 16] [--sparsity 0.95] [--threads 1] [--seconds 6]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F
from engines import in_turns, serve
from torch import Tensor, nn

import cigl
from cigl.runtime.bench import RIVALS


def layer(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: type | None = nn.ReLU):
    """Convolution, batch norm, activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([act()] if act else []))


class Excite(nn.Module):
    """Squeeze and excitation (Hu et al. 2018)."""

    def __init__(self, width: int, inner: int, act: type = nn.ReLU, gate: type = nn.Sigmoid):
        super().__init__()
        self.down, self.up, self.act, self.gate = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1), act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))


class Residual(nn.Module):
    """relu(branch + shortcut), or without the ReLU."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, relu: bool):
        super().__init__()
        self.branch, self.shortcut, self.relu = branch, shortcut, relu

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x) + self.shortcut(x)
        return F.relu(y) if self.relu else y


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]


def inverted(inputs: int, outputs: int, expand: float, kernel: int, stride: int, act: type, excite=None) -> nn.Module:
    """An inverted residual (Sandler et al. 2018)."""
    width = int(inputs * expand)
    parts = [layer(inputs, width, act=act)] if expand != 1 else []
    parts.append(layer(width, width, kernel, stride, width, act))
    parts += [excite(inputs, width)] if excite else []
    branch = nn.Sequential(*parts, layer(width, outputs, act=None))
    return Residual(branch, nn.Identity(), False) if stride == 1 and inputs == outputs else branch


def mobilenetv2() -> nn.Module:
    parts, width = [layer(3, 32, 3, 2, act=nn.ReLU6)], 32
    for expand, outputs, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            parts.append(inverted(width, outputs, expand, 3, 1 if number else stride, nn.ReLU6))
            width = outputs
    return nn.Sequential(*parts, layer(320, 1280, act=nn.ReLU6), *head(1280))


def mobilenetv3() -> nn.Module:
    """The large one (Howard et al. 2019)."""
    swish, parts, width = nn.Hardswish, [layer(3, 16, 3, 2, act=nn.Hardswish)], 16

    def excite(inputs: int, width: int) -> nn.Module:
        return Excite(width, -(-width // 32) * 8, nn.ReLU, nn.Hardsigmoid)

    for kernel, expand, outputs, se, act, stride in (
        (3, 16, 16, 0, nn.ReLU, 1), (3, 64, 24, 0, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 1), (5, 72, 40, 1, nn.ReLU, 2),
        (5, 120, 40, 1, nn.ReLU, 1), (5, 120, 40, 1, nn.ReLU, 1), (3, 240, 80, 0, swish, 2), (3, 200, 80, 0, swish, 1),
        (3, 184, 80, 0, swish, 1), (3, 184, 80, 0, swish, 1), (3, 480, 112, 1, swish, 1), (3, 672, 112, 1, swish, 1),
        (5, 672, 160, 1, swish, 2), (5, 960, 160, 1, swish, 1), (5, 960, 160, 1, swish, 1),
    ):  # fmt: skip
        parts.append(inverted(width, outputs, expand / width, kernel, stride, act, excite if se else None))
        width = outputs
    last = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(960, 1280, 1), nn.Hardswish(), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*parts, layer(160, 960, act=swish), *last)


def efficientnet() -> nn.Module:
    """B0 (Tan & Le 2019)."""
    parts, width = [layer(3, 32, 3, 2, act=nn.SiLU)], 32

    def excite(inputs: int, width: int) -> nn.Module:
        return Excite(width, inputs // 4, nn.SiLU)

    for expand, outputs, count, stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for number in range(count):
            parts.append(inverted(width, outputs, expand, kernel, 1 if number else stride, nn.SiLU, excite))
            width = outputs
    return nn.Sequential(*parts, layer(320, 1280, act=nn.SiLU), *head(1280))


STEM = (layer, (3, 64, 7, 2)), (nn.MaxPool2d, (3, 2, 1))


def bottlenecks(stem, width: int, strides, widths, counts, ratio: int, groups, se: int = 0) -> nn.Module:
    """ResNeXt, SE-ResNet and RegNet: 1x1, 3x3 in groups, perhaps squeeze and excitation, 1x1."""
    parts = [make(*arguments) for make, arguments in stem]
    for first, outputs, count in zip(strides, widths, counts, strict=True):
        for number in range(count):
            inner, stride = outputs // ratio, 1 if number else first
            branch = [layer(width, inner), layer(inner, inner, 3, stride, groups(inner))]
            branch += [Excite(inner, width // se)] if se else []
            branch.append(layer(inner, outputs, act=None))
            short = layer(width, outputs, 1, stride, act=None) if not number else nn.Identity()
            parts.append(Residual(nn.Sequential(*branch), short, True))
            width = outputs
    return nn.Sequential(*parts, *head(width))


def resnext() -> nn.Module:
    """ResNeXt-50 32x4d (Xie et al. 2017)."""
    return bottlenecks(STEM, 64, (1, 2, 2, 2), (256, 512, 1024, 2048), (3, 4, 6, 3), 2, lambda inner: 32)


def seresnet() -> nn.Module:
    """ResNet-50 with squeeze and excitation before each block's last layer."""
    return bottlenecks(STEM, 64, (1, 2, 2, 2), (256, 512, 1024, 2048), (3, 4, 6, 3), 4, lambda inner: 1, se=4)


def regnet() -> nn.Module:
    """RegNetY-800MF (Radosavovic et al. 2020)."""
    stem = [(layer, (3, 32, 3, 2))]
    return bottlenecks(stem, 32, (2, 2, 2, 2), (64, 128, 320, 768), (1, 3, 8, 2), 1, lambda inner: inner // 16, se=4)


class DenseLayer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.down = nn.BatchNorm2d(width), layer(width, 128)
        self.conv = nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.conv(self.down(F.relu(self.norm(torch.cat(parts, 1)), inplace=True)))


class DenseBlock(nn.Module):
    def __init__(self, width: int, count: int):
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(width + 32 * number) for number in range(count))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for each in self.layers:
            parts.append(each(parts))
        return torch.cat(parts, 1)


def densenet() -> nn.Module:
    """DenseNet-121 (Huang et al. 2017)."""
    parts, width = [layer(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for number, count in enumerate((6, 12, 24, 16)):
        parts.append(DenseBlock(width, count))
        width += 32 * count
        parts += [nn.BatchNorm2d(width), nn.ReLU()]
        if number < 3:
            parts += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*parts, *head(width))


class LastNorm(nn.Module):
    """A layer norm over a picture's channels."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """ConvNeXt-T (Liu et al. 2022)."""
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), LastNorm(96)]
    for stage, count in enumerate((3, 3, 9, 3)):
        width = 96 << stage
        parts += [LastNorm(width // 2), nn.Conv2d(width // 2, width, 2, 2)] if stage else []
        parts += [NextBlock(width) for _ in range(count)]
    return nn.Sequential(*parts, *head(768))


NETWORKS = {
    each.__name__: each
    for each in (mobilenetv2, mobilenetv3, efficientnet, regnet, densenet, resnext, seresnet, convnext)
}
FLOORS = {"mobilenetv2": 1.3}  # times ONNX Runtime at 95 % on one thread (issue 18); 1.0 for the others


def sparse_network(name: str, sparsity: float) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not (
            module.weight.dim() == 4 and module.weight.shape[1] == 1
        ):
            kept = torch.rand(module.weight.shape) >= sparsity
            module.weight.data *= kept * (1 - sparsity) ** -0.5
        if isinstance(module, nn.BatchNorm2d):
            assert isinstance(module.running_mean, Tensor)
            assert isinstance(module.running_var, Tensor)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


def serve_engine(engine: str, network: str, sparsity: float, batch: int, threads: int) -> None:
    torch.set_num_threads(threads)
    model, x = sparse_network(network, sparsity), torch.randn(batch, 3, 224, 224)
    if engine != "cigl":
        serve(RIVALS[engine](model, x, threads), {})
        return
    fast = cigl.sparse_inference(model)
    with torch.inference_mode():
        expected, result = model(x), fast(x)
        error = float((result - expected).abs().max() / expected.abs().max())
        rows = fast.plan()["shapes"][0]["units"]
        units = [sum(row["runs"] == "sparse" for row in rows), len(rows)]
        serve(lambda: fast(x), {"error": error, "units": units})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    for network in options.network:
        for batch in options.batch:
            spec = {"network": network, "sparsity": options.sparsity, "batch": batch, "threads": options.threads}
            found = in_turns(__file__, ["cigl", "onnxruntime"], spec, options.seconds)
            ours, error, units = (found["cigl"][name] for name in ("seconds", "error", "units"))
            assert error <= 1e-4, f"{network}: the outputs differ by {error:.1e}"
            theirs = found["onnxruntime"]["seconds"]
            print(
                f"{network} batch {batch}, threads {options.threads}, {options.sparsity:.0%}: "
                f"{theirs / ours:.2f} x onnxruntime (floor {FLOORS.get(network, 1.0)}) | ms: cigl {1000 * ours:.1f}, "
                f"onnxruntime {1000 * theirs:.1f} | {units[0]} of {units[1]} units sparse",
                flush=True,
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--serve"]:
        serve_engine(sys.argv[2], **json.loads(sys.argv[3]))
    else:
        main()
