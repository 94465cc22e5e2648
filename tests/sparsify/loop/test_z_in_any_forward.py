"""Whichever way a forward goes, it computes with M*Z*W in training and with M*W in eval mode: against plain torch."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from loops import attach, batch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cigl
from cigl.runtime.program import library

pytestmark = pytest.mark.skipif(not library.available(), reason="no kernels")


class Net(nn.Module):
    """Its hidden part is checkpointed on request."""

    checkpointed = False

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def hidden(self, h):
        return F.relu(self.b(h))

    def forward(self, x):
        h = F.relu(self.a(x))
        h = checkpoint(self.hidden, h, use_reentrant=False) if self.checkpointed else self.hidden(h)
        return self.c(h)


def autocast(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return model(x)


def checkpointed(model, x):
    model.checkpointed = True
    try:
        return model(x)
    finally:
        model.checkpointed = False


def without_gradients(model, x):
    with torch.no_grad():
        return model(x)


def in_eval_mode(model, x):
    model.eval()
    try:
        return without_gradients(model, x)
    finally:
        model.train()


def differentiated_forward(model, x):
    return torch.func.jvp(model, (x,), (torch.ones_like(x),))[0]


LEARNING = {"eager": lambda model, x: model(x), "autocast": autocast, "checkpointed": checkpointed}
LOOKING = {"no_grad": without_gradients, "eval": in_eval_mode, "jvp": differentiated_forward}


class Compiled:
    """``torch.compile(model)``, made when it is first asked for."""

    def __init__(self):
        self._compiled = None

    def __call__(self, model, x):
        if self._compiled is None:
            self._compiled = torch.compile(model, backend="eager")
        return self._compiled(x)


def as_in_plain_torch(sparse, plain, call, x, is_eval):
    """The call on a model that holds M*Z*W, or M*W."""
    z = {} if is_eval else sparse.random_masks or {}
    plain.load_state_dict(sparse.model.state_dict())  # M*W, always
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in z:
                parameter *= z[name]
    return call(plain, x)


steps = st.tuples(
    st.lists(st.sampled_from(sorted(LOOKING)), max_size=2),
    st.lists(st.sampled_from([*sorted(LEARNING), "compiled"]), min_size=1, max_size=2),
    st.lists(st.sampled_from(["no_grad", "jvp"]), max_size=1),
)


@settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate])  # to shrink takes minutes
@given(st.lists(steps, min_size=3, max_size=7), st.sampled_from(["sparse", "masked"]))
def test_every_forward_reads_the_weights_of_its_step(sequence, kernels):
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ways = {**LEARNING, **LOOKING, "compiled": Compiled()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cigl.CiglWarning)
        sparse = attach(model, optimizer, cigl.method("cigl", random_mask=0.3, update_every=4), kernels=kernels)
        for number, (before, learning, after) in enumerate(sequence, 1):
            x, y = batch(number)
            optimizer.zero_grad()
            expected = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
            for way in [*before, *learning, *after]:
                found = ways[way](model, x)
                reference = as_in_plain_torch(
                    sparse, plain, {**ways, "compiled": LEARNING["eager"]}[way], x, way == "eval"
                )
                torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-5)
                if way in learning:
                    F.cross_entropy(found.float(), y).backward()
                    plain.zero_grad()
                    F.cross_entropy(reference.float(), y).backward()
                    for name, p in plain.named_parameters():
                        expected[name] += p.grad
            z = sparse.random_masks
            assert any(not mask[sparse.masks[name]].all() for name, mask in z.items())
            for name, parameter in model.named_parameters():
                wanted = expected[name] * (sparse.masks[name] * z[name] if name in z else 1)
                near = 2e-2 if "autocast" in learning else 1e-4
                torch.testing.assert_close(parameter.grad, wanted, rtol=near, atol=near * float(wanted.abs().max()))
            kept = {name: value[~z[name]] for name, value in model.state_dict().items() if name in z}
            optimizer.step()
            if number % 4:  # no topology round
                for name, values in kept.items():
                    assert torch.equal(model.get_parameter(name).detach()[~z[name]], values), name
