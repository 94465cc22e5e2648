"""A sparsifier as an attribute of its model, parts called apart, other people's hooks, torch.func."""

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, mlp, run, sgd, step
from torch import nn
from torch.func import functional_call, grad
from torch.optim.swa_utils import AveragedModel

import cigl


def test_a_model_that_holds_its_sparsifier_is_finalized_without_it():
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    model.sparse = attach(model, optimizer, "cigl")
    model[0].also = model.sparse
    run(model, optimizer, 40)
    final = model.sparse.finalize()
    assert not hasattr(final, "sparse")
    assert not hasattr(final[0], "also")
    assert b"cigl" not in pickle.dumps(final)
    assert final[0].weight[~model.sparse.masks["0.weight"]].eq(0).all()


@pytest.mark.parametrize("way", ["deepcopy", "averaged", "pickle"])
def test_a_copy_of_such_a_model_has_no_sparsifier_and_says_so(way):
    model = mlp()
    optimizer = sgd(model)
    model.sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 3)
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "averaged":
        other = AveragedModel(model).module
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert torch.equal(other[0].weight, model[0].weight)
    with pytest.raises(cigl.CiglError, match="a copy of a model has no sparsifier, so no finalize"):
        other.sparse.finalize()
    run(other, sgd(other), 2)
    assert model.sparse.step == 3
    copy.deepcopy(other)  # and again


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(classes=8), nn.Linear(8, 4)


def test_parts_in_mixed_modes_are_explained():
    model = Parts()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    x, y = batch(1)
    model.body.eval()
    loss = F.cross_entropy(model.head(model.body(x)), y)
    with pytest.raises(cigl.CiglError, match=r"Linear ran in eval mode, and then another part .* same mode"):
        loss.backward()
    # what is no mixture works: no graph in the eval part, both in one mode, an evaluation with a graph before
    for way in ("no_grad", "detach", "train", "both eval first"):
        model.body.eval()
        if way == "no_grad":
            with torch.no_grad():
                hidden = model.body(x)
        elif way == "detach":
            hidden = model.body(x).detach()
        else:
            if way == "both eval first":
                model.eval()
                model.head(model.body(x))
            hidden = model.train().body(x)
        F.cross_entropy(model.head(hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.step == 4
    assert hooks == [len(module._forward_hooks) for module in model.modules()]


def test_without_z_mixed_modes_just_work():
    model = Parts()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "rigl")
    model.body.eval()
    for number in range(1, 8):
        F.cross_entropy(model.head(model.body(batch(number)[0])), batch(number)[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.step == 7


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_hook_of_the_users_sees_m_w(when):
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    seen = []

    def look(*_):
        seen.append(model[0].weight.detach().clone())

    if when == "before":
        optimizer.register_step_post_hook(look)
    sparse = attach(model, optimizer, "cigl", random_mask=0.4)
    if when == "after":
        optimizer.register_step_post_hook(look)
    for number in range(1, 8):
        step(model, optimizer, number)
        assert torch.equal(seen[-1], model[0].weight)
    assert sparse.step == len(seen) == 7


def test_torch_func_is_refused_in_training_in_its_own_name_and_works_in_eval():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    run(model, optimizer, 2)
    x, y = batch(3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values):
        return F.cross_entropy(functional_call(model, values, (x,)), y)

    for call in (grad(loss), loss):
        with pytest.raises(cigl.CiglError, match=r"torch\.func computes with a stand-in for 0\.weight.* eval mode"):
            call(parameters)
    model.eval()
    gradients = grad(loss)(parameters)
    free = mlp().eval()
    free.load_state_dict(parameters)
    F.cross_entropy(free(x), y).backward()
    torch.testing.assert_close(gradients["0.weight"], free[0].weight.grad)
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, optimizer, 2, first=3)
    assert sparse.step == 4
