"""Forwards that do more than call layers, so that a capture may miss it: small networks, 12 inputs and 4 classes."""

from __future__ import annotations

import dataclasses
import random
import typing

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

BUILDS: dict[str, typing.Callable[[], nn.Module]] = {}
HOW: dict[str, str] = {}
WHOLE, PARTS, LAYERS = "as one graph", "in parts, Python between them", "layer by layer"


class Net(nn.Module):
    """Three layers; subclasses say what happens between them. ``each_step`` is what a loop does before a step."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x):
        return self.c(self.middle(F.relu(self.a(x))))

    def middle(self, h):
        return F.relu(self.b(h))

    def each_step(self, step):
        pass


def build(name, how=WHOLE):
    """``how`` much of it is captured."""

    def decorated(make):
        BUILDS[name], HOW[name] = make, how
        return make

    return decorated


# Gradients


@build("`with torch.no_grad():` around a part")
class NoGrad(Net):
    def middle(self, h):
        with torch.no_grad():
            frozen = F.relu(self.b(h))
        return frozen + h


@torch.no_grad()
def helper(layer, h):
    return layer(h)


@build("a helper under `@torch.no_grad()`")
class NoGradHelper(Net):
    def middle(self, h):
        return helper(self.b, h) + h


@build("`torch.set_grad_enabled(False)` and back")
class SetGradEnabled(Net):
    def middle(self, h):
        torch.set_grad_enabled(False)
        frozen = self.b(h)
        torch.set_grad_enabled(True)
        return frozen + h


@build("`torch.inference_mode()` around a part")
class InferenceMode(Net):
    def middle(self, h):
        with torch.inference_mode():
            frozen = self.b(h)
        return frozen.clone() + h


@build("`detach()`")
class Detach(Net):
    def middle(self, h):
        return self.b(h).detach() * 0.5 + h


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


@build("a custom `torch.autograd.Function`: gradient reversal")
class GradientReversal(Net):
    def middle(self, h):
        return Reversal.apply(F.relu(self.b(h)))


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


@build("a custom `torch.autograd.Function`: straight-through")
class StraightThrough(Net):
    def middle(self, h):
        return Sign.apply(self.b(h))


@build("`torch.autograd.grad` inside of forward", PARTS)
class GradInside(Net):
    def middle(self, h):
        inner = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(inner.square().sum(), inner)
        return F.relu(self.b(h)) + 0.1 * slope


# Questions


@build("`isinstance(x, torch.Tensor)`")
class IsInstance(Net):
    def middle(self, h):
        return F.relu(self.b(h)) if isinstance(h, torch.Tensor) else h


@build("`torch.is_tensor(h)`, `hasattr(h, ...)`")
class Questions(Net):
    def middle(self, h):
        if not torch.is_tensor(h) or hasattr(h, "node") or hasattr(h, "logits"):
            return h
        return F.relu(self.b(h))


@build("`torch.is_grad_enabled()`, `h.requires_grad`")
class GradMode(Net):
    def middle(self, h):
        h = self.b(h) if torch.is_grad_enabled() else h
        return F.relu(h) if h.requires_grad else h


@build("an autocast block")
class Autocast(Net):
    def middle(self, h):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.b(h)
        return F.relu(h.float())


@build("a branch on values (`if h.mean() > 0.3`)", PARTS)
class OnValues(Net):
    def middle(self, h):
        return F.relu(self.b(h)) if h.mean() > 0.3 else self.b(h)


@build("`try`, `except`", PARTS)
class Excepts(Net):
    def middle(self, h):
        try:
            return self.b(h[:, :5])
        except RuntimeError:
            return F.relu(self.b(h))


# What changes from call to call


class Config:
    scale = 1.0
    power = 1


@build("a value of a configuration object, on a schedule")
class ConfigObject(Net):
    def __init__(self):
        super().__init__()
        self.config = Config()

    def each_step(self, step):
        self.config.scale = 1.0 + 0.1 * step

    def middle(self, h):
        return F.relu(self.b(h)) * self.config.scale


@build("a value in a dict, or in a list changed in place")
class ConfigDict(Net):
    def __init__(self):
        super().__init__()
        self.config, self.powers = {"scale": 1.0}, [1]

    def each_step(self, step):
        self.config["scale"] = 1.0 + 0.1 * step
        self.powers[0] = 1 + step % 2

    def middle(self, h):
        return F.relu(self.b(h)) ** self.powers[0] * self.config["scale"]


@build("a tuple or number of the module, on a schedule")
class Attribute(Net):
    def __init__(self):
        super().__init__()
        self.scale, self.pair = 1.0, (1, 2)

    def each_step(self, step):
        self.scale, self.pair = 1.0 - 0.05 * step, (1 + step % 2, 2)

    def middle(self, h):
        return F.relu(self.b(h)) * self.scale + h * self.pair[0] / self.pair[1]


scale = 1.0


@build("a module-level variable, on a schedule")
class Global(Net):
    def each_step(self, step):
        global scale
        scale = 1.0 + 0.1 * step

    def middle(self, h):
        return F.relu(self.b(h)) * scale


@build("a counter that forward itself moves")
class Counter(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def middle(self, h):
        self.calls += 1
        return F.relu(self.b(h)) / self.calls


@build("the number of times that a layer is called, on a schedule")
class Repeats(Net):
    times = 1

    def each_step(self, step):
        self.times = 1 + step // 4

    def middle(self, h):
        for _ in range(self.times):
            h = F.relu(self.b(h))
        return h


@build("`requires_grad` of a layer, changed in training")
class Freezing(Net):
    def each_step(self, step):
        self.a.requires_grad_(step % 3 != 2)


@build("another function in an attribute (`self.act = F.silu`)")
class Activation(Net):
    act = staticmethod(F.relu)

    def each_step(self, step):
        if step == 4:
            self.act = F.silu

    def middle(self, h):
        return self.act(self.b(h))


@build("a tensor outside of the module, replaced and changed in place")
class OutsideTensor(Net):
    def __init__(self):
        super().__init__()
        self.outside = [torch.ones(24)]

    def each_step(self, step):
        if step % 2:
            self.outside[0] = torch.full((24,), 1.0 + 0.1 * step)
        self.outside[0].mul_(0.9)

    def middle(self, h):
        return F.relu(self.b(h)) * self.outside[0]


# Random numbers


@build("`random.Random` of the module's own: stochastic depth", PARTS)
class OwnRandom(Net):
    def __init__(self):
        super().__init__()
        self.random = random.Random(0)

    def middle(self, h):
        return h if self.random.random() < 0.5 else F.relu(self.b(h))


@build("Python's and numpy's random numbers", PARTS)
class GlobalRandom(Net):
    def each_step(self, step):
        random.seed(step), np.random.seed(step)

    def middle(self, h):
        h = h if random.random() < 0.3 else F.relu(self.b(h))
        return h * (1 + 0.1 * float(np.random.rand()))


@build("a `numpy.random.Generator` of the module's own", PARTS)
class OwnNumpy(Net):
    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(0)

    def middle(self, h):
        return h if self.random.random() < 0.5 else F.relu(self.b(h))


@build("dropout and noise")
class Noise(Net):
    def each_step(self, step):
        torch.manual_seed(step)

    def middle(self, h):
        return F.dropout(F.relu(self.b(h)), 0.3, self.training) + 0.1 * torch.randn_like(h)


# Checkpointing


@build("`checkpoint(..., use_reentrant=True)` over batch norm", LAYERS)
class Reentrant(Net):
    reentrant = True

    def __init__(self):
        super().__init__()
        self.b, self.norm = nn.Linear(24, 24, bias=False), nn.BatchNorm1d(24)

    def part(self, h):
        return F.relu(self.norm(self.b(h)))

    def middle(self, h):
        return checkpoint(self.part, h, use_reentrant=self.reentrant)


@build("`checkpoint(..., use_reentrant=False)` over batch norm", LAYERS)
class NonReentrant(Reentrant):
    reentrant = False


@build("`torch.utils.checkpoint` over everything, with dropout", LAYERS)
class AllCheckpointed(Net):
    def each_step(self, step):
        torch.manual_seed(step)

    def forward(self, x):
        return checkpoint(lambda x: self.c(F.dropout(F.relu(self.b(F.relu(self.a(x)))), 0.2)), x, use_reentrant=False)


# What forward leaves behind


@build("appending to a list outside of the module")
class Appends(Net):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "seen", [])

    def middle(self, h):
        h = F.relu(self.b(h))
        self.seen.append(h.detach().mean())
        assert all(type(each) is torch.Tensor for each in self.seen)
        return h


@build("a stored activation (`self.feat = h`), used by the loss")
class Stores(Net):
    def middle(self, h):
        self.feat = F.relu(self.b(h))
        return self.feat

    def penalty(self):
        return 0.01 * self.feat.square().mean()


@build("a buffer moved in forward")
class Buffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(24))

    def middle(self, h):
        h = F.relu(self.b(h))
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.average


@build("a part of a buffer changed through a view", LAYERS)
class BufferView(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(2, 24))

    def middle(self, h):
        h = F.relu(self.b(h))
        newest = self.average[1]
        newest.copy_(h.detach().mean(0))
        return h - self.average.mean(0)


@build("forward hooks on layers, added in training")
class Hooks(Net):
    def each_step(self, step):
        if step == 3:
            self.b.register_forward_hook(lambda module, args, out: out * 2)


@build("full backward hooks on layers", PARTS)
class BackwardHooks(Net):
    def __init__(self):
        super().__init__()
        self.b.register_full_backward_hook(lambda module, into, out: tuple(0.5 * each for each in into))


@build("`.item()`, `print` and logging in forward")
class Logs(Net):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "log", [])

    def middle(self, h):
        h = F.relu(self.b(h))
        self.log.append(h.mean().item())
        return h


# Weights and other inputs


@build("a weight read by forward itself")
class ReadsWeight(Net):
    def middle(self, h):
        return F.relu(F.linear(h, self.b.weight * 2, self.b.bias)) + self.b(h)

    def penalty(self):
        return 0.001 * self.a.weight.abs().sum()


@build("a dict, dataclass or named tuple between parts")
class Structures(Net):
    @dataclasses.dataclass
    class Out:
        h: torch.Tensor

    class Pair(typing.NamedTuple):
        left: torch.Tensor
        right: torch.Tensor

    def middle(self, h):
        found = {"out": self.Out(self.b(h)), "pair": self.Pair(h, h * 2)}
        return F.relu(found["out"].h) + found["pair"].right


@build("a part scripted by `torch.jit.script`", PARTS)
class Scripted(Net):
    def __init__(self):
        super().__init__()
        self.b = torch.jit.script(nn.Linear(24, 24))


@build("`torch.func.jvp`, forward-mode derivatives, in some steps")
class ForwardMode(Net):
    def each_step(self, step):
        self.is_dual = step % 3 == 2

    def penalty(self):
        if not self.is_dual:
            return 0.0
        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.ones(9, 12), torch.ones(9, 12))
            return 0.1 * forward_ad.unpack_dual(self(x)).tangent.square().mean()


@build("`torch.vmap`, `torch.func.grad` inside of forward", LAYERS)
class Transforms(Net):
    def middle(self, h):
        slope = torch.vmap(torch.func.grad(lambda row: row.square().sum()))(h)
        return F.relu(self.b(h)) + 0.1 * slope


@build("a gradient penalty (`create_graph=True`) in some steps, from the first one on")
class GradientPenalty(Net):
    def each_step(self, step):
        self.is_penalized = step % 3 == 0

    def middle(self, h):
        return F.silu(self.b(h))

    def penalty(self):
        if not self.is_penalized:
            return 0.0
        x = torch.ones(9, 12, requires_grad=True)
        (slope,) = torch.autograd.grad(self(x).logsumexp(1).sum(), x, create_graph=True)
        return slope.square().mean()


@build("a part compiled with `torch.compile(part)` or `part.compile()`")
class CompiledPart(Net):
    def __init__(self):
        super().__init__()
        self.part = torch.compile(nn.Sequential(nn.Linear(24, 24), nn.ReLU()), backend="eager")

    def middle(self, h):
        return self.part(F.relu(self.b(h)))
