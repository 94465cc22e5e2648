"""A call of cigl.attach that fails leaves model and optimizer as they were, whatever failed; a good one then works."""

import copy
import pickle
import warnings
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given, settings
from hypothesis import strategies as st
from loops import batch, convnet, mlp
from torch import Tensor, nn
from torch.optim import Optimizer

import cigl
from cigl.runtime.training.kernels import TrainingKernels
from cigl.sparsify import attaching as attach_module
from cigl.sparsify.parameters.layer import Layer

GOOD = {"sparsity": 0.7, "epochs": 10, "steps_per_epoch": 4, "update_every": 3}
BAD = [
    {"sparsity": 1.5}, {"sparsity": None}, {"epochs": 0}, {"steps_per_epoch": 2.5}, {"seed": "x"}, {"method": "no"},
    {"method": 7}, {"distribution": "flat"}, {"update_every": 0}, {"update_until": 2}, {"drop_fraction": -1},
    {"random_mask": 1.0}, {"average_from": -0.1}, {"update_until": 0.95}, {"initial": "largest"}, {"kernels": "fast"},
    {"layers": {"none": 0.5}}, {"layers": {"*": False}}, {"layers": 3}, {"layers": {"0": 1.0}, "sparsity": 0.99},
    {"initial": "magnitude", "rescale": True}, {"method": "gmp", "update_every": 10**6}, {"optimizer": None},
    {"optimizer": "foreign"}, {"optimizer": "partial"}, {"optimizer": "lbfgs"}, {"warnings": "error", "epochs": 1},
]  # fmt: skip
CALLED = [  # on the way; any of them may fail
    (nn.Module, "register_forward_pre_hook"),
    (nn.Module, "register_forward_hook"),
    (nn.Module, "register_state_dict_post_hook"),
    (nn.Module, "register_load_state_dict_pre_hook"),
    (nn.Module, "register_load_state_dict_post_hook"),
    (Tensor, "register_hook"),
    (Tensor, "register_post_accumulate_grad_hook"),
    (Optimizer, "register_step_pre_hook"),
    (Optimizer, "register_step_post_hook"),
    (Optimizer, "register_load_state_dict_post_hook"),
    (TrainingKernels, "_take_over"),
    (Layer, "set_mask"),
    (Layer, "clear_inactive"),
    (attach_module, "_rescale"),
]


def build(model_kind, optimizer_kind, used):
    torch.manual_seed(0)
    model = {"mlp": lambda: mlp(normalise=True), "convnet": convnet}[model_kind]()
    model[0].weight.tag = "the user's"
    model.register_forward_hook(print_nothing)
    if optimizer_kind == "adam":
        optimizer = torch.optim.Adam(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_post_hook(print_nothing)
    if used:
        one_step(model, optimizer)
        model[0].weight.requires_grad_(used != "frozen")
    return model, optimizer


def print_nothing(*_):
    return None


def one_step(model, optimizer, steps=1):
    shape = (8, 2, 8, 8) if isinstance(model[0], nn.Conv2d) else (8, 12)
    for number in range(steps):
        x, y = batch(number, shape)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def bits(tensor):
    return None if tensor is None else (tensor.dtype, tuple(tensor.stride()), tensor.detach().clone().numpy().tobytes())


def look(model, optimizer):
    """All that a user could see of both, deeply. Hooks by identity; a table of hooks that is empty counts as none."""
    seen = []
    for name, module in model.named_modules():
        for attribute, value in sorted(vars(module).items()):
            if attribute in ("_parameters", "_buffers", "_modules"):
                value = [(key, id(part)) for key, part in value.items()]
            elif hasattr(value, "items"):
                value = [(key, id(hook)) for key, hook in value.items()]
            elif not isinstance(value, (int, float, str, tuple, type(None))):
                value = id(value)
            seen.append((name, attribute, value))
        seen += [(name, key, bits(buffer)) for key, buffer in module._buffers.items()]
    for name, p in model.named_parameters():
        hooks = [list((table or {}).values()) for table in (p._backward_hooks, p._post_accumulate_grad_hooks)]
        seen.append((name, bits(p), bits(p.grad), p.requires_grad, dict(vars(p)), hooks, id(p.grad)))
        state = optimizer.state.get(p, {}) if p in optimizer.state else None
        seen.append(None if state is None else {k: bits(v) if isinstance(v, Tensor) else v for k, v in state.items()})
    for attribute, value in sorted(vars(optimizer).items()):
        if "hooks" in attribute:
            seen.append((attribute, [(key, id(hook)) for key, hook in value.items()]))
    groups = [{k: v if k != "params" else list(map(id, v)) for k, v in g.items()} for g in optimizer.param_groups]
    return [*seen, sorted(vars(optimizer)), groups, torch.get_rng_state().numpy().tobytes()]


def fail(model, optimizer, options):
    """Call attach so that it fails; whether it did."""
    options = GOOD | options
    kind = options.pop("optimizer", optimizer)
    if isinstance(kind, str):
        parameters = {"foreign": [torch.zeros(2, 2)], "partial": model[0].parameters(), "lbfgs": model.parameters()}
        kind = (torch.optim.LBFGS if kind == "lbfgs" else torch.optim.SGD)(parameters[kind])
    with warnings.catch_warnings():
        warnings.simplefilter(options.pop("warnings", "ignore"))
        try:
            cigl.attach(model, kind, **({"method": "cigl"} | options))
        except (cigl.CiglError, cigl.CiglWarning, ConnectionError, KeyboardInterrupt) as error:
            return "\n" not in str(error)
    return False


def assert_a_good_call_works(model, optimizer):
    """... and trains like one on a model that has never seen a failure."""
    other, other_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    results = []
    for m, o in ((model, optimizer), (other, other_optimizer)):
        m.requires_grad_(True).zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sparse = cigl.attach(m, o, "cigl", **GOOD)
        one_step(m, o, 4)
        results.append((sparse.masks, {name: bits(p) for name, p in m.named_parameters()}))
    assert str(results[0]) == str(results[1])


MODELS = st.sampled_from(["mlp", "convnet"])
OPTIMIZERS = st.sampled_from(["sgd", "adam"])
USED = st.sampled_from([False, True, "frozen"])


@settings(max_examples=40, deadline=None)
@given(MODELS, OPTIMIZERS, USED, st.sampled_from(BAD))
def test_bad_input_changes_nothing(model_kind, optimizer_kind, used, options):
    model, optimizer = build(model_kind, optimizer_kind, used)
    before = look(model, optimizer)
    assert fail(model, optimizer, options)
    assert look(model, optimizer) == before


@pytest.mark.parametrize(("owner", "name"), CALLED, ids=lambda part: getattr(part, "__name__", part))
@settings(max_examples=5, deadline=None)
@given(MODELS, OPTIMIZERS, USED, st.integers(0, 7), st.sampled_from([ConnectionError, KeyboardInterrupt]))
def test_a_failure_on_the_way_is_undone(owner, name, model_kind, optimizer_kind, used, number, kind):
    """The call number ``number`` of a function on the way fails; where there are fewer calls, the last one does."""
    model, optimizer = build(model_kind, optimizer_kind, used)
    options = {"kernels": "sparse", "rescale": True}
    calls = count_calls(owner, name, copy.deepcopy((model, optimizer)), options)
    before, left = look(model, optimizer), [min(number, calls - 1)]
    original = getattr(owner, name)

    def failing(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise kind("no")
        return original(*args, **kwargs)

    with mock.patch.object(owner, name, failing):
        assert fail(model, optimizer, options)
    assert look(model, optimizer) == before
    event(f"{name} {min(number, calls - 1)}")
    assert_a_good_call_works(model, optimizer)


def count_calls(owner, name, both, options):
    original, calls = getattr(owner, name), []

    def counted(*args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)

    model, optimizer = both
    fresh_optimizer = type(optimizer)(model.parameters(), lr=0.1)
    with mock.patch.object(owner, name, counted):
        assert not fail(model, fresh_optimizer, options)
    return len(calls)


def test_an_optimizer_without_hooks_is_refused_before_anything_changes():
    """As accelerate's wrapper is: an Optimizer whose constructor was never called."""

    class Wrapper(Optimizer):
        def __init__(self, optimizer):
            self.inner = optimizer

        @property
        def param_groups(self):
            return self.inner.param_groups

        @property
        def state(self):
            return self.inner.state

    model, optimizer = build("mlp", "sgd", used=True)
    before = look(model, optimizer)
    with pytest.raises(cigl.CiglError, match="no step hooks"):
        cigl.attach(model, Wrapper(optimizer), "rigl", **GOOD)
    assert look(model, optimizer) == before
    assert_a_good_call_works(model, optimizer)
