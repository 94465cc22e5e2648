"""Parameter counts as published, forms by input size, and networks that other tools can take apart."""

import pytest
import torch
from torch import nn

import cigl.models
from cigl.common.errors import CiglError

CIFAR, IMAGENET, GREY = (3, 32, 32), (3, 224, 224), (1, 28, 28)


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "shape", "parameters"),
    [
        ("resnet18", 1000, IMAGENET, 11_689_512),  # torchvision's documentation
        ("resnet50", 1000, IMAGENET, 25_557_032),
        ("resnet18", 10, CIFAR, 11_173_962),  # the CIFAR form that most repositories share
        ("resnet50", 10, CIFAR, 23_520_842),
        ("resnet50", 100, CIFAR, 23_520_842 + 90 * 2049),
        ("wrn-28-10", 10, CIFAR, 36_479_194),  # 36.5 M in table 4 of Zagoruyko & Komodakis
        ("wrn-16-4", 10, CIFAR, 2_748_890),  # 2.7 M
        ("wrn-40-4", 10, CIFAR, 8_949_210),  # 8.9 M
        ("wrn-16-8", 10, CIFAR, 10_961_370),  # 11.0 M
        ("mlp", 10, GREY, 266_610),  # LeNet-300-100: 266.6 k
        ("mlp-300-100", 10, (784,), 266_610),
        ("mlp-5", 2, (3,), 3 * 5 + 5 + 5 * 2 + 2),
    ],
)
def test_published_counts(name, classes, shape, parameters):
    with torch.device("meta"):
        assert count(cigl.models.build(name, classes, shape)) == parameters


def test_half_is_the_same_network_on_averaged_images():
    torch.manual_seed(0)
    whole = cigl.models.build("wrn-10-1", 10, CIFAR)
    half = cigl.models.build("wrn-10-1-half", 10, CIFAR)
    half.load_state_dict(dict(zip(half.state_dict(), whole.state_dict().values(), strict=True)))
    x = torch.randn(2, *CIFAR)
    small = (x[..., ::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, ::2] + x[..., 1::2, 1::2]) / 4
    torch.testing.assert_close(half.eval()(x), whole.eval()(small))


def wrn_count(depth, k, classes, channels=3):
    """By hand: convolutions, two numbers per batch-norm channel, the classifier."""
    n = (depth - 4) // 6
    total, inside = 9 * 16 * channels, 16
    for width in (16 * k, 32 * k, 64 * k):
        for block in range(n):
            total += 2 * inside + 9 * inside * width + 2 * width + 9 * width * width
            total += inside * width if block == 0 and inside != width else 0
            inside = width
    return total + 2 * inside + inside * classes + classes


@pytest.mark.parametrize(("depth", "k"), [(10, 1), (16, 4), (22, 2), (28, 10), (40, 1)])
@pytest.mark.parametrize(("classes", "channels"), [(10, 3), (100, 1)])
def test_wide_resnets_by_formula(depth, k, classes, channels):
    with torch.device("meta"):
        model = cigl.models.build(f"wrn-{depth}-{k}", classes, (channels, 32, 32))
    assert count(model) == wrn_count(depth, k, classes, channels)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == depth - 2  # the depth counts the classifier and, by its authors' habit, shortcuts


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (40,)),
        ("mlp-7-5", GREY),
        ("convnet", CIFAR),
        ("convnet", GREY),
        ("wrn-10-1", CIFAR),
        ("wrn-10-1", GREY),
        ("resnet18", CIFAR),
        ("resnet18", GREY),
        ("resnet18", (3, 64, 64)),
        ("resnet18", (3, 96, 80)),
        ("resnet50", (3, 65, 65)),
    ],
)
def test_shapes_tracing_and_export(name, shape):
    model = cigl.models.build(name, 7, shape).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        y = model(x)
        assert y.shape == (2, 7)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), y)
        batch = torch.export.Dim("batch", min=2, max=64)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},)).module()
        assert torch.allclose(exported(torch.cat([x, x, x])), torch.cat([y, y, y]), atol=1e-5)


@pytest.mark.parametrize(("side", "small"), [(32, True), (64, True), (65, False), (224, False)])
def test_the_form_follows_the_size(side, small):
    with torch.device("meta"):
        model = cigl.models.build("resnet18", 10, (3, side, side))
    stem = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    assert stem.kernel_size == ((3, 3) if small else (7, 7))
    assert any(isinstance(m, nn.MaxPool2d) for m in model.modules()) != small


@pytest.mark.parametrize("name", ["convnet", "wrn-16-4", "resnet18"])
def test_initialisation(name):
    torch.manual_seed(0)
    for module in cigl.models.build(name, 10, CIFAR).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5_000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
            assert module.bias is None


def test_the_seed_decides():
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in cigl.models.build("convnet", 10, CIFAR).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_everything_learns():
    """Every parameter of every network gets a gradient."""
    for name in ("mlp", "convnet", "wrn-10-2", "resnet18", "resnet50"):
        model = cigl.models.build(name, 5, (3, 16, 16))
        model(torch.randn(2, 3, 16, 16)).logsumexp(1).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrn-20-2", r"6n \+ 4.*wrn-22-2"),
        ("wrn-4-2", r"wrn-10-2"),
        ("wrn-22-0", r"wrn-22-1"),
        ("mlp-300-0", "at least one unit"),
        ("resnet51", "did you mean 'resnet50'"),
        ("ResNet18", "did you mean 'resnet18'"),
        ("wrn", "unknown model"),
        ("mlp-", "did you mean 'mlp'"),
        ("", "unknown model"),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(CiglError, match=message):
        cigl.models.build(name, 10, CIFAR)


def test_wrong_inputs():
    for name in ("convnet", "wrn-22-2", "resnet18"):
        with pytest.raises(CiglError, match="needs images"):
            cigl.models.build(name, 10, (40,))
    with pytest.raises(CiglError, match="at least one class"):
        cigl.models.build("mlp", 0, (40,))


def test_names():
    known = cigl.models.names()
    assert list(known)[-1] == "package.module:factory"
    assert {"mlp", "convnet", "wrn-D-K", "resnet18", "resnet50"} < set(known)
    assert all(line and "\n" not in line for line in known.values())
