"""Options, defaults, and bad input: one clear sentence, and nothing is changed."""

import copy
import warnings

import numpy as np
import pytest
import torch
from loops import attach, batch, mlp, run, sgd
from torch import nn

import cigl

BASE = {"sparsity": 0.7, "epochs": 50, "steps_per_epoch": 40}


def refuse(message, model=None, optimizer=None, method="cigl", **options):
    model = mlp() if model is None else model
    optimizer = sgd(model, momentum=0.9) if optimizer is None else optimizer
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    hooks = [len(m._forward_pre_hooks) for m in model.modules()]
    with pytest.raises(cigl.CiglError, match=message) as caught:
        cigl.attach(model, optimizer, method, **(BASE | options))
    assert str(before) == str((model.state_dict(), optimizer.state_dict()))
    assert hooks == [len(m._forward_pre_hooks) for m in model.modules()]
    assert not any(p.__dict__ for p in model.parameters())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 95, float("nan")])
def test_sparsity_out_of_range(sparsity):
    refuse(r"sparsity is .*: give the share of zeros", sparsity=sparsity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "cigll"}, "unknown method 'cigll': did you mean 'cigl'"),
        ({"method": 3}, "method is a int: give a name"),
        ({"distribution": "erc"}, "unknown distribution 'erc': did you mean 'er"),
        ({"initial": "magnitud"}, "unknown initial 'magnitud': did you mean 'magnitude'"),
        ({"update_every": 0}, "update_every is 0"),
        ({"update_every": 2.5}, "update_every is 2.5"),
        ({"drop_fraction": 1.5}, r"drop_fraction is .*1.5.*: give a share from 0 to 1"),
        ({"update_until": 1.5}, r"update_until is 1.5: give a share in \[0, 1\]"),
        ({"random_mask": 1.0}, r"random_mask is 1.0: give a share in \[0, 1\)"),
        ({"average_from": 1.0}, "average_from is 1.0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "3"}, "epochs is '3'"),
        ({"epochs": 2.33}, "2.33 epochs of 40 steps"),
        ({"epochs": float("nan")}, "epochs is nan"),
        ({"epochs": 1.5, "update_every": 10}, "nothing would be averaged: no epoch of 40 steps ends in the last 20 %"),
        ({"steps_per_epoch": 3.5}, "steps_per_epoch is 3.5"),
        ({"sparsity": "0.9"}, "sparsity is '0.9'"),
        ({"sparsity": None}, "sparsity is None"),
        ({"drop_fraction": "cosine"}, "drop_fraction is 'cosine'"),
        ({"random_mask": "0.1"}, "random_mask is '0.1'"),
        ({"update_every": True}, "update_every is True"),
        ({"seed": "abc"}, "seed is 'abc': give a whole number"),
        ({"seed": 1.5, "initial": "magnitude"}, "seed is 1.5"),
        ({"layers": {"0": "dense"}}, "give True, False or a density"),
        ({"layers": ["0"]}, "layers is a list: give a dictionary"),
        ({"method": "rigl", "random_mask": 0.1}, "'rigl' has no random_mask.* cigl, .*rigl-wdp"),
        ({"method": "rigl", "average_from": 0.8}, "'rigl' has no average_from"),
        ({"method": "static", "update_every": 10}, "'static' has no update_every"),
        ({"method": "dense"}, "'dense' has no zeros: pass sparsity=0"),
        ({"layers": {"fc": False}}, r"layers\['fc'\] matches no weight"),
        ({"layers": {"0": 0.9}, "sparsity": 0.99}, "change the densities or the sparsity"),
        ({"update_until": 0.9}, r"averaging would start at step 1640, .* up to step 1800"),
        ({"initial": "magnitude", "rescale": True}, "rescale is for fresh weights"),
        ({"method": "gmp", "update_every": 10**6}, "gmp would never prune"),
        ({"method": "sup-tickets", "epochs": 5}, "no cycle of 2 epochs fits"),
    ],
)
def test_bad_options(options, message):
    refuse(message, **options)


def test_a_fraction_of_epochs():
    """Trainers count in steps: 2.5 epochs, or 1000 steps of 313 each."""
    for epochs, per_epoch, steps, snapshots in ((2.5, 4, 10, [8]), (1000 / 313, 313, 1000, [939]), (3.0, 4, 12, [12])):
        model = mlp()
        sparse = cigl.attach(
            model,
            sgd(model),
            cigl.method("cigl", average_of="p*W"),
            sparsity=0.8,
            epochs=epochs,
            steps_per_epoch=per_epoch,
            update_every=2,
            average_from=0.75,
        )
        assert sparse.table.steps == steps
        assert sparse.table.snapshot_steps == snapshots
    assert type(sparse.settings["epochs"]) is int  # as states of earlier versions have it


def test_bad_models_and_optimizers():
    refuse("nothing to make sparse", nn.Sequential(nn.BatchNorm1d(3)))
    refuse("holds none of the model's weights", mlp(), sgd(mlp()))
    model = mlp()
    refuse("LBFGS moves inactive weights", model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(cigl.CiglError, match=r"takes a torch\.nn\.Module and a torch\.optim\.Optimizer"):
        cigl.attach(model, model, "cigl", **BASE)
    model = mlp()
    refuse(r"does not hold 2\.weight .* layers={'2\.weight': False}", model, sgd(model[0]))


def test_attaching_twice():
    model = mlp()
    optimizer = sgd(model)
    attach(model, optimizer, "rigl")
    with pytest.raises(cigl.CiglError, match="already attached: call detach"):
        attach(model, optimizer, "rigl")
    other = copy.deepcopy(model)
    attach(other, sgd(other), "rigl")  # a copy is free


def test_unknown_options_of_a_method_name_the_nearest():
    with pytest.raises(
        cigl.CiglError, match="unknown option of method 'cigl' 'random_masks': did you mean 'random_mask'"
    ):
        cigl.method("cigl", random_masks=0.1)
    with pytest.raises(cigl.CiglError, match="unknown average_of 'W'"):
        cigl.method("cigl", average_of="W")


def test_the_papers_defaults():
    method = cigl.method("cigl")
    assert (method.update_every, method.update_until) == (100, 0.75)
    assert (method.drop_fraction, method.random_mask, method.average_from) == (cigl.cosine(0.3), 0.1, 0.8)


def test_options_reach_the_method():
    model = mlp()
    sparse = attach(
        model,
        sgd(model),
        "cigl",
        update_every=7,
        drop_fraction=0.5,
        update_until=0.5,
        random_mask=0.2,
        average_from=0.6,
    )
    method = sparse.method
    assert (method.update_every, method.update_until, method.random_mask, method.average_from) == (7, 0.5, 0.2, 0.6)
    assert method.drop_fraction == cigl.cosine(0.5)
    model = mlp()
    sparse = attach(model, sgd(model), "rigl", drop_fraction=cigl.linear(0.4))
    assert sparse.method.drop_fraction == cigl.linear(0.4)


def test_the_catalogue():
    names = cigl.methods()
    assert list(names) == [
        "dense", "static", "set", "snfs", "rigl", "itop", "dst-ee", "gmp", "cigl", "cigl-no-rm", "cigl-no-wma",
        "cigl-rise", "cigl-auto", "sup-tickets", "rigl-wdp", "rigl-mcdp",
    ]  # fmt: skip
    assert all(names.values())


@pytest.mark.parametrize("name", list(cigl.methods()))
def test_every_method_trains_and_finalizes(name):
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, name)
    x, y = batch(500, (400, 12))
    before = torch.nn.functional.cross_entropy(model(x), y).item() if name == "dense" else None
    run(model, optimizer, 40)
    final = sparse.finalize().eval()
    accuracy = (final(x).argmax(1) == y).float().mean().item()
    assert accuracy > 0.45, before  # four classes


def test_layers_may_stay_dense_or_have_their_own_density():
    model = mlp()
    sparse = attach(model, sgd(model), "rigl", layers={"2": False})
    assert list(sparse.masks) == ["0.weight"]
    assert sparse.masks["0.weight"].sum() == round(0.3 * 288)
    model = mlp()
    sparse = attach(model, sgd(model), "rigl", layers={"2": 1.0}, sparsity=0.5)
    assert sparse.masks["2.weight"].all()
    assert sum(int(m.sum()) for m in sparse.masks.values()) == round(0.5 * (288 + 96))


def test_magnitude_start_keeps_the_largest_weights():
    model = mlp()
    before = model[0].weight.detach().clone()
    sparse = attach(model, sgd(model), "rigl", initial="magnitude")
    mask = sparse.masks["0.weight"]
    assert before[mask].abs().min() >= before[~mask].abs().max()
    assert torch.equal(model[0].weight[mask], before[mask])


def test_rescaling_keeps_the_variance_of_a_units_input():
    torch.manual_seed(0)
    variances = {}
    for rescale in (False, True):
        model = nn.Sequential(nn.Linear(400, 300, bias=False))
        x = torch.randn(200, 400)
        dense = model(x).var().item()
        attach(model, sgd(model), "rigl", sparsity=0.9, rescale=rescale)
        model.eval()
        variances[rescale] = model(x).var().item() / dense
    assert variances[False] == pytest.approx(0.1, rel=0.1)
    assert variances[True] == pytest.approx(1.0, rel=0.1)


def test_rescaling_by_hand():
    layer = nn.Linear(4, 2, bias=False)
    nn.init.ones_(layer.weight)
    sparse = attach(layer, sgd(layer), "static", sparsity=0.5, rescale=True)
    mask = sparse.masks["weight"]
    for row in range(2):
        fan_in = int(mask[row].sum())
        if fan_in:
            assert layer.weight[row][mask[row]].tolist() == pytest.approx([(4 / fan_in) ** 0.5] * fan_in)


def test_state_of_a_used_optimizer_is_masked_at_the_start():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    run(model, optimizer, 3)
    sparse = attach(model, optimizer, "cigl")
    for layer in sparse.layers:
        for _, state, _ in layer.states():
            assert state[~layer.mask].eq(0).all()
            assert state[layer.mask].ne(0).any()


def test_what_is_probably_not_meant_is_warned_of():
    model = mlp()
    with pytest.warns(cigl.CiglWarning, match="the topology will never change"):
        cigl.attach(model, sgd(model), "rigl", sparsity=0.5, epochs=2, steps_per_epoch=10, update_every=100)
    model = mlp()
    with pytest.warns(cigl.CiglWarning, match=r"only 2 snapshots .* average_of='p\*W'"):
        cigl.attach(model, sgd(model), "cigl", sparsity=0.5, epochs=10, steps_per_epoch=100)
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cigl.attach(model, sgd(model), "cigl", sparsity=0.5, epochs=30, steps_per_epoch=100)


def test_a_warning_made_an_error_changes_nothing():
    model = mlp()
    with torch.no_grad():
        model[2].weight *= torch.rand_like(model[2].weight) > 0.8
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cigl.CiglWarning):
            cigl.attach(model, sgd(model), "rigl", **BASE)
    assert str(before) == str(model.state_dict())


def test_numpy_whole_numbers_are_whole_numbers():
    model = mlp()
    sparse = attach(model, sgd(model), "rigl", epochs=np.int64(10), seed=np.int32(3))
    assert sparse.table.steps == 40


def test_no_weight_left_is_warned_of():
    model = mlp()
    with pytest.warns(cigl.CiglWarning, match="leaves no weight at all"):
        cigl.attach(model, sgd(model), "static", sparsity=0.9999, epochs=1, steps_per_epoch=5)


def test_importing_cigl_pulls_in_nothing_heavy():
    import subprocess
    import sys

    heavy = ["matplotlib", "scipy", "transformers", "rich", "mnist1d", "sklearn", "torchvision"]
    code = f"import cigl, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
