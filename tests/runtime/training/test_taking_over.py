"""A model's call is taken over without anybody noticing: hooks, copies, other parameters, threads, random numbers."""

import copy
import gc
import pickle
import random
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_nets import ISAS, on_kernels, step, thin

from cigl.common.errors import CiglError

pytestmark = pytest.mark.skipif(not ISAS, reason="no kernels")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))


def of(forward, **parts: nn.Module) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Net.forward = forward
    return Net()


def untraceable() -> nn.Module:
    """Its layers run on kernels one by one."""
    return of(lambda self, x: x if x.sum() > 1e9 else self.layer(x), layer=nn.Linear(12, 5))


def taken(model: nn.Module):
    """The masks and the kernels, after a first step."""
    kernels = on_kernels(model, thin(model, 0.5))
    model(torch.randn(9, 12)).sum().backward()
    assert kernels.sparse
    return kernels


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-5 * b.abs().max())


def same_as_in_torch(model: nn.Module, kernels, call=None) -> bool:
    """Twice, with the same random numbers."""
    x, call = torch.randn(9, 12), call or (lambda x: model(x))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    ours = [call(x).detach() for _ in range(2)]
    torch.set_rng_state(states[0]), random.setstate(states[1]), np.random.set_state(states[2])
    kernels.remove()
    theirs = [call(x).detach() for _ in range(2)]
    return all(close(a, b) for a, b in zip(ours, theirs, strict=True))


def test_hooks_of_the_root_act_once_and_may_change_what_passes():
    model, seen = mlp(), []
    model.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda module, args, out: out + 1)
    model.register_forward_hook(lambda *_: seen.append("after"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    kernels = on_kernels(model, thin(model, 0.5))
    model(torch.randn(9, 12, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]
    assert kernels.sparse == set(model.parameters())
    assert same_as_in_torch(model, kernels)


def test_hooks_of_parts_act_once_also_those_that_come_later():
    model, seen = mlp(), []
    kernels = taken(model)
    for kind in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        for place in range(3):
            seen.clear()
            handle = getattr(model[place], f"register_{kind}")(lambda *_, seen=seen: seen.append(1))
            model(torch.randn(9, 12, requires_grad=True)).sum().backward()
            assert seen == [1], (kind, place)
            handle.remove()
    assert all("hook" in reason for reason in kernels.reasons)  # Dynamo runs those of the backward between two graphs


def test_a_hook_that_changes_a_shape_acts():
    model = mlp()
    kernels = taken(model)
    model[1].register_forward_hook(lambda module, args, out: out[:5])
    assert len(model(torch.randn(9, 12))) == 5
    assert same_as_in_torch(model, kernels)


def test_global_hooks_see_every_module():
    model, seen = mlp(), []
    taken(model)
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        model(torch.randn(9, 12))
    finally:
        handle.remove()
    assert sorted(seen) == ["Linear", "Linear", "ReLU", "Sequential"]


@pytest.mark.parametrize("make", [mlp, untraceable])
@pytest.mark.parametrize("graph", [True, False])
def test_calls_with_other_parameters(make, graph):
    model = make()
    kernels = taken(model)
    for factor in (2.0, 3.0):
        other = {name: (p if graph else p.detach()) * factor for name, p in model.named_parameters()}
        call = lambda x, other=other: torch.func.functional_call(model, other, (x,))  # noqa: E731
        x = torch.randn(9, 12)
        ours = call(x)
        vars_ = [module._compiled_call_impl for module in model.modules()]
        kernels.remove()
        assert close(ours.detach(), call(x).detach())
        for module, own in zip(model.modules(), vars_, strict=True):
            module._compiled_call_impl = own


def test_parts_that_are_replaced_after_the_first_step():
    for replace in (
        lambda m: m.__setitem__(2, nn.Linear(24, 4)),
        lambda m: m.__setitem__(1, nn.Tanh()),
        lambda m: setattr(m[2], "bias", nn.Parameter(torch.randn(4))),
        lambda m: setattr(m[1], "forward", torch.tanh),
        lambda m: m.append(nn.Softmax(1)),
    ):
        model = mlp()
        kernels = taken(model)
        replace(model)
        model.zero_grad()
        model(torch.randn(9, 12)).pow(2).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        assert same_as_in_torch(model, kernels)


def test_settings_that_change_after_the_first_step():
    model = of(lambda self, x: self.norm(self.drop(self.layer(x) * self.scale)) + 1,
               layer=nn.Linear(12, 8), drop=nn.Dropout(0.0), norm=nn.BatchNorm1d(8))  # fmt: skip
    model.scale = 1.0
    for change in (
        lambda m: setattr(m, "scale", 2.0),
        lambda m: setattr(m.drop, "p", 0.5),
        lambda m: setattr(m.norm, "eps", 1.0),
        lambda m: m.norm.eval(),
    ):
        model.train()
        kernels = taken(model)
        change(model)
        assert same_as_in_torch(model, kernels)


def test_a_layout_that_changes_after_the_first_step():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3))
    on_kernels(model, thin(model, 0.5))
    x = torch.randn(9, 4, 6, 6)
    before = step(model, x)
    model.to(memory_format=torch.channels_last)
    assert step(model, x).difference(before)[0] < 1e-5


def test_weights_that_are_a_part_of_others_run_in_torch():
    model = nn.Sequential(nn.Linear(12, 6))
    model[0].weight = nn.Parameter(torch.randn(6, 24)[:, ::2])
    model[0].bias = nn.Parameter(torch.randn(12)[::2])
    kernels = on_kernels(model, thin(model, 0.5))
    model(torch.randn(9, 12)).sum().backward()
    assert not kernels.sparse
    assert same_as_in_torch(model, kernels)


def test_a_bias_that_is_unfrozen_later_gets_its_gradient():
    for model, bias in ((m := mlp(), m[0].bias), (n := untraceable(), n.layer.bias)):
        bias.requires_grad_(False)
        taken(model)
        bias.requires_grad_(True)
        model(torch.randn(9, 12)).sum().backward()
        assert bias.grad is not None


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.rand(), lambda: float(torch.rand(()))])
@pytest.mark.parametrize("inside", [True, False])
def test_a_forward_that_draws_random_numbers_draws_them_each_time(draw, inside):
    sometimes = of(lambda self, x: self.layer(x) if draw() < 0.5 else x, layer=nn.Linear(12, 12))
    model = nn.Sequential(nn.Linear(12, 12), sometimes, nn.Linear(12, 3)) if inside else sometimes
    kernels = on_kernels(model, thin(model, 0.5))
    x = torch.randn(9, 12)
    assert len({round(float(model(x).detach().sum()), 4) for _ in range(20)}) == 2
    assert kernels.sparse
    assert same_as_in_torch(model, kernels)


def test_noise_of_a_fixed_size_is_new_each_time():
    model = of(lambda self, x: self.layer(x + torch.randn(12)), layer=nn.Linear(12, 12))
    assert same_as_in_torch(model, taken(model))


def test_a_forward_may_leave_something_in_its_module():
    def forward(self, x):
        self.calls += 1
        self.features = self.layer(x)
        self.average.mul_(0.9).add_(self.features.detach().mean(), alpha=0.1)
        return self.features * 2

    model = of(forward, layer=nn.Linear(12, 12))
    model.calls = 0
    model.register_buffer("average", torch.zeros(()))
    whole = nn.Sequential(nn.Linear(12, 12), model, nn.Linear(12, 3))
    kernels = taken(whole)
    for _ in range(4):
        whole(torch.randn(9, 12))
    assert model.calls == 5
    assert type(model.features) is torch.Tensor
    assert model.features.device.type == "cpu"
    assert model.average != 0
    assert model.layer.weight in kernels.sparse


def test_dropout_draws_in_the_order_of_the_forward():
    model = of(lambda self, x: self.d(self.a(x)) + self.b(self.e(x)),
               a=nn.Linear(12, 12), b=nn.Linear(12, 12), d=nn.Dropout(0.5), e=nn.Dropout(0.5))  # fmt: skip
    assert same_as_in_torch(model, taken(model))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_shared_batch_norm_moves_its_statistics_in_order(threads):
    def forward(self, x):
        b = self.n(self.b(x))
        return F.relu(self.n(self.a(x)) + b)

    model = of(forward, a=nn.Linear(12, 64), b=nn.Linear(12, 64), n=nn.BatchNorm1d(64, momentum=0.5))
    masks, x = thin(model, 0.5), torch.randn(32, 12)
    names = {name: masks[p] for name, p in model.named_parameters() if p in masks}
    expected = step(copy.deepcopy(model), x, masks=names)
    torch.set_num_threads(threads)
    on_kernels(model, masks)
    assert step(model, x).difference(expected)[0] < 1e-5


def test_batch_norm_statistics_move_also_without_gradients():
    for model in (nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8, momentum=m)) for m in (0.1, None)):
        kernels, twin = on_kernels(model, thin(model, 0.5)), copy.deepcopy(model)
        with torch.no_grad():
            for _ in range(3):
                x = torch.randn(9, 12)
                assert close(model(x), twin(x))
        assert kernels.sparse
        assert model[1].num_batches_tracked == twin[1].num_batches_tracked == 3
        assert close(model[1].running_mean, twin[1].running_mean)
        assert close(model[1].running_var, twin[1].running_var)


def test_copies_and_pickles_are_plain():
    model = mlp()
    taken(model)
    loss = model(torch.randn(9, 12)).sum()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(module._compiled_call_impl is None for module in other.modules())
        assert not any("forward" in vars(module) for module in other.modules())
    loss.backward()


class OwnState(torch.nn.Sequential):
    """With a __getstate__ of its own that keeps every attribute, as LightningModule has."""

    def __getstate__(self):
        return dict(self.__dict__)


def test_copies_of_a_class_with_its_own_state_are_plain():
    model = OwnState(*mlp())
    taken(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(module._compiled_call_impl is None for module in other.modules())


def test_removal_leaves_what_the_user_has_compiled():
    model = mlp()
    kernels = taken(model)
    mine = model[0]._compiled_call_impl = lambda x: x
    kernels.remove()
    assert model[0]._compiled_call_impl is mine
    assert model._compiled_call_impl is model[2]._compiled_call_impl is None


def test_an_error_in_the_forward_leaves_the_model_as_it_was():
    model = mlp()
    kernels = taken(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(9, 13))
    with pytest.raises(RuntimeError):
        model(torch.randn(9, 12).double())
    assert not any("forward" in vars(module) for module in model.modules())
    assert same_as_in_torch(model, kernels)


def test_a_model_in_double_after_the_first_step_runs_in_torch():
    for model in (mlp(), untraceable()):
        taken(model)
        model.double()
        with pytest.raises(RuntimeError, match="dtype"):
            model(torch.randn(9, 12))
        assert model(torch.randn(9, 12).double()).dtype == torch.float64


def test_two_graphs_at_once_and_one_twice():
    model = mlp()
    kernels = taken(model)
    twin = mlp()
    twin.load_state_dict(model.state_dict())
    a, b = torch.randn(9, 12), torch.randn(9, 12)
    gradients = []
    for each in (model, twin):
        each.zero_grad()
        (each(a) * each(b)).sum().backward()  # siamese
        loss = each(a).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        gradients.append([p.grad for p in each.parameters()])
    masks = {p: p.detach() != 0 for p in model.parameters() if p.dim() > 1}
    for p, ours, theirs in zip(model.parameters(), *gradients, strict=True):
        assert close(ours, theirs * masks.get(p, torch.tensor(1.0)))
    total = model(a).sum()
    total.backward()
    with pytest.raises(CiglError, match="twice without retain_graph"):
        total.backward()
    assert kernels.sparse


def penalised(model, x):
    """A gradient penalty: its gradient is a second derivative."""
    y = model(x)
    (gradient,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    (gradient.pow(2).sum() + y.sum()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_second_derivatives_are_those_of_torch():
    model, x = mlp(), torch.randn(9, 12, requires_grad=True)
    kernels = taken(model)
    model.zero_grad()
    theirs = penalised(copy.deepcopy(model), x)
    ours = penalised(model, x)
    assert kernels.sparse
    for name, p in model.named_parameters():
        active = p != 0 if p.dim() > 1 else torch.ones_like(p, dtype=torch.bool)
        assert close(ours[name][active], theirs[name][active])


def test_second_derivatives_of_an_inner_part_are_refused_clearly():
    model = nn.Sequential(nn.Linear(12, 12), nn.GELU(), mlp())
    taken(model)
    x = torch.randn(9, 12, requires_grad=True)
    model(x).sum().backward()  # the first is compared with torch, and keeps what that needs
    with pytest.raises(CiglError, match=r"asks for a second derivative.*kernels='masked'"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_transforms_of_functions_run_in_torch():
    model = mlp()
    kernels = taken(model)
    parameters, x = {n: p.detach() for n, p in model.named_parameters()}, torch.randn(9, 12)
    loss = lambda ps, x: torch.func.functional_call(model, ps, (x[None],)).pow(2).sum()  # noqa: E731
    ours = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)  # per sample
    assert any("torch.func" in reason for reason in kernels.reasons)
    kernels.remove()
    theirs = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    assert all(close(ours[name], theirs[name]) for name in ours)


def test_forward_mode_derivatives_run_in_torch():
    model, x = mlp(), torch.randn(9, 12)
    taken(model)
    with torch.autograd.forward_ad.dual_level():
        out = model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model = of(lambda self, x: self.b(checkpoint(self.a, x, use_reentrant=reentrant)), a=mlp(), b=nn.Linear(4, 4))
    masks, x = thin(model, 0.5), torch.randn(9, 12, requires_grad=True)
    names = {name: masks[p] for name, p in model.named_parameters() if p in masks}
    expected = step(copy.deepcopy(model), x, masks=names)
    kernels = on_kernels(model, masks)
    assert all(step(model, x).difference(expected)[0] < 1e-5 for _ in range(2))
    assert kernels.sparse


def test_traces_of_jit_hold_no_kernels():
    model = mlp()
    taken(model)
    traced = torch.jit.trace(model, (torch.randn(9, 12),), check_trace=False)
    y = torch.randn(9, 12)
    assert close(traced(y).detach(), model(y).detach())


def test_arguments_by_name_and_with_defaults():
    def forward(self, x, flag=True, scale=None):
        return {"y": self.layer(x) if flag else x, "scale": [scale]}

    model = of(forward, layer=nn.Linear(12, 5))
    on_kernels(model, thin(model, 0.5))
    x = torch.randn(9, 12)
    assert torch.equal(model(x)["y"], model(x=x)["y"])
    assert model(x, flag=False)["y"] is x
    assert model(x, scale=3)["scale"] == [3]


def test_results_may_be_changed_in_place():
    model = mlp()
    taken(model)
    y = model(torch.randn(9, 12))
    y += 1
    y.relu_().sum().backward()


@pytest.mark.parametrize("make", [mlp, untraceable])
def test_patterns_and_programs_of_earlier_topologies_are_gone(make):
    model = make()
    kernels = taken(model)
    x = torch.randn(9, 12, requires_grad=True)
    model(x).sum().backward()
    both = (*kernels._patterns._patterns.values(), *kernels._plans._plans.values())
    old = [weakref.ref(each) for each in both if each is not None]
    del both
    kernels.topology_changed()
    model(x).sum().backward()
    gc.collect()
    assert old
    assert not any(each() for each in old)


def test_gradients_of_an_earlier_topology_are_not_taken_for_masked_ones():
    model = mlp()
    kernels = taken(model)
    model.zero_grad()
    model(torch.randn(9, 12)).sum().backward()
    assert kernels.made(model[0].weight, model[0].weight.grad)
    model.zero_grad()
    loss = model(torch.randn(9, 12)).sum()
    kernels.topology_changed()
    assert not any(kernels.made(p, p.grad) for p in model.parameters() if p.grad is not None)
    loss.backward()
    assert not kernels.made(model[0].weight, model[0].weight.grad)


def test_forwards_without_backward_use_the_same_memory():
    model = mlp()
    kernels = taken(model)
    for _ in range(5):
        model(torch.randn(9, 12))
        with torch.no_grad():
            model(torch.randn(9, 12))
    pools = [pool for plan in kernels._plans._plans.values() for pool in plan.subgraphs[0]._free.values()]
    assert [len(pool) for pool in pools] == [1, 1]  # with gradients and without
    programs = [pool[0] for pool in pools]
    for _ in range(5):
        model(torch.randn(9, 12))
    assert [pool[0] for pool in pools] == programs


def test_inputs_of_odd_kinds():
    model = mlp()
    taken(model)
    assert model(torch.randn(0, 12)).shape == (0, 4)
    assert model(torch.randn(12)).shape == (4,)
    assert model(torch.randn(12, 9).t()).shape == (9, 4)
    assert model(torch.randn(1, 12).expand(9, 12)).shape == (9, 4)
    assert model(torch.randn(2, 3, 4, 12)).shape == (2, 3, 4, 4)
    assert model(nn.Parameter(torch.randn(9, 12))).shape == (9, 4)
    with torch.inference_mode():
        model(torch.randn(9, 12))
    model(torch.randn(9, 12)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_default_dtype_changes_nothing(dtype):
    """The kernels' memory is float32, not what torch makes when it is not told."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)), torch.randn(16, 12)
    plain = copy.deepcopy(model)
    kernels = on_kernels(model, thin(model, 0.3))
    plain.load_state_dict(model.state_dict())
    torch.set_default_dtype(dtype)
    try:
        model(x).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert kernels.sparse
    plain(x).sum().backward()
    torch.testing.assert_close(model[2].bias.grad, plain[2].bias.grad)
    torch.testing.assert_close(model[0].bias.grad, plain[0].bias.grad, rtol=1e-4, atol=1e-5)
