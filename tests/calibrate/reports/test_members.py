"""evaluate, ensembles, Monte-Carlo prediction, snapshots and posterior draws."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from simulate import world
from torch import nn

import cigl
from cigl import CiglError
from cigl.calibrate import Ensemble, MonteCarlo, Report, mean_prediction, predict, report

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
LOADER = [(X[:40], Y[:40]), (X[40:89], Y[40:89]), (X[89:], Y[89:])]  # a last batch of one


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_evaluate_is_the_report_of_the_predictions():
    model = small().eval()
    expected = report(logits=model(X), labels=Y)
    shown = cigl.evaluate(model, LOADER)
    assert shown.to_dict() == expected.to_dict()
    assert cigl.evaluate(model, LOADER, bins=20, device="cpu", resamples=10).bins == 20


def test_evaluate_leaves_everything_as_it_was():
    model = small()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    choices = (None, 3, [model, small()])
    state = torch.get_rng_state()
    for members in choices:
        cigl.evaluate(model, LOADER, members=members, resamples=10)
    assert model.training
    assert not model[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_mappings_and_objects_with_logits():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x, labels=None):
            return SimpleNamespace(logits=self.inner(x))

    model = Named()
    loader = [{"x": x, "labels": y} for x, y in LOADER]
    assert cigl.evaluate(model, loader) == cigl.evaluate(model.inner, LOADER)


def test_a_mean_of_probabilities():
    logits = [torch.randn(5, 4, dtype=torch.float64) for _ in range(3)]
    mean = torch.stack([one.softmax(1) for one in logits]).mean(0)
    assert torch.allclose(mean_prediction(logits).exp(), mean)
    assert mean_prediction([torch.zeros(1, 2, dtype=torch.float16)]).dtype == torch.float32
    sure = mean_prediction([torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.0, 0.0]])])
    assert sure[0, 1] == pytest.approx(np.log(0.25))


def test_a_deep_ensemble():
    models = [small().eval() for _ in range(3)]
    mean = torch.stack([model(X).softmax(1) for model in models]).mean(0).detach()
    shown = cigl.evaluate(None, LOADER, members=models)
    assert shown.nll == pytest.approx(float(-mean.log().gather(1, Y[:, None]).mean()), rel=1e-5)
    assert shown == cigl.evaluate(Ensemble(models), LOADER)
    assert shown.nll <= np.mean([cigl.evaluate(model, LOADER).nll for model in models])  # NLL is convex


def test_mc_dropout_keeps_batch_norm_still():
    model = small()
    once, twice = (cigl.evaluate(model, LOADER, members=30, resamples=10) for _ in range(2))
    assert once == twice  # seeded
    assert once.nll != cigl.evaluate(model, LOADER, resamples=10).nll
    wrapped = MonteCarlo(model, 2).eval()
    assert [module.training for module in model] == [False, False, False, True, False]
    assert wrapped(X[:2]).shape == (2, 3)


def trained(method, **options):
    model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sparse = cigl.attach(model, optimizer, method, sparsity=0.5, epochs=10, steps_per_epoch=3, **options)
    for _ in range(10):
        for x, y in [(X[i::3], Y[i::3]) for i in range(3)]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return sparse


@pytest.mark.parametrize("method", ["cigl-no-wma", "rigl-mcdp", "cigl"])
def test_members_of_a_sparse_training(method):
    """Snapshots, random masks and posterior draws: each a line for a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cigl.CiglWarning)
        if method == "cigl":
            sparse = trained(cigl.method("cigl", second_moment=True))
            members = sparse.sample_posterior(5, LOADER)
        else:
            sparse = trained(method)
            members = sparse.members(None if method == "cigl-no-wma" else 5)
    for member in members:
        cigl.reestimate_batch_norm(member, LOADER)
    shown = cigl.evaluate(None, LOADER, members=members)
    assert isinstance(shown, Report)
    mean = torch.stack([member.eval()(X).softmax(1) for member in members]).mean(0).detach()
    assert shown.brier == pytest.approx(report(probabilities=mean, labels=Y).brier, abs=1e-5)


def test_refusals():
    model = small()
    with pytest.raises(CiglError, match="no batch"):
        cigl.evaluate(model, [])
    with pytest.raises(CiglError, match="no labels"):
        cigl.evaluate(model, [X])
    with pytest.raises(CiglError, match="at least 2 bins"):
        cigl.evaluate(model, LOADER, bins=1)
    with pytest.raises(CiglError, match="pass the model"):
        cigl.evaluate(None, LOADER, members=3)
    with pytest.raises(CiglError, match="needed, not NoneType"):
        cigl.evaluate(None, LOADER)
    with pytest.raises(CiglError, match="no members"):
        cigl.evaluate(None, LOADER, members=[])
    with pytest.raises(CiglError, match="at least once"):
        cigl.evaluate(model, LOADER, members=0)
    with pytest.raises(CiglError, match="no dropout layer"):
        cigl.evaluate(nn.Linear(6, 3), LOADER, members=3)
    with pytest.raises(CiglError, match="one row per label"):
        cigl.evaluate(model, [(X, Y[:5])])

    class Odd(nn.Module):
        def forward(self, x):
            return "no tensor"

    with pytest.raises(CiglError, match="a str without logits"):
        cigl.evaluate(Odd(), LOADER)


def test_predict():
    logits, labels = predict(small(), LOADER)
    assert logits.shape == (90, 3)
    assert torch.equal(labels, Y)
    assert world(3)[0].shape == (3, 5)


def test_what_members_may_be():
    dropping = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    assert cigl.evaluate(dropping, LOADER, members=np.int64(2), resamples=5).n == 90
    assert cigl.evaluate(None, LOADER, members=(nn.Linear(6, 3) for _ in range(2)), resamples=5).n == 90
    for bad in (True, nn.Linear(6, 3), dropping):
        with pytest.raises(CiglError, match="pass a list of models, or how many times"):
            cigl.evaluate(dropping, LOADER, members=bad)


def test_a_model_stays_where_it_is_without_device():
    class Fixed(nn.Linear):
        def to(self, *args, **kwargs):
            raise AssertionError("moved")

    assert cigl.evaluate(Fixed(6, 3), LOADER, resamples=5).n == 90


def test_labels_as_a_list_and_mappings_a_model_does_not_take():
    model = nn.Linear(6, 3)
    assert cigl.evaluate(model, [(X, Y.tolist())], resamples=5).n == 90
    with pytest.raises(CiglError, match=r"does not take a mapping's entries by name .*yield \(inputs, labels\)"):
        cigl.evaluate(model, [{"x": X, "labels": Y}])
