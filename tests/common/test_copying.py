"""Models that keep what they have computed, and those that can't be copied at all."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

import cigl
from cigl import CiglError
from cigl.common.copying import deep_copy, uncopyable


class Storing(nn.Module):
    """Keeps activations as an attribute, in containers and in an object of its own."""

    class Notes:
        def __init__(self, tensor):
            self.tensor = tensor

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 24), nn.Linear(24, 4)
        self.kept = {}

    def forward(self, x):
        self.features = torch.relu(self.body(x))
        self.kept["list"] = [self.features, (self.features * 2,)]
        self.kept["notes"] = Storing.Notes(self.features)
        return self.head(self.features)


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 4)
        self.body.lock = threading.Lock()

    def forward(self, x):
        return self.body(x)


def trained(model, method="cigl", steps=20):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = cigl.attach(model, optimizer, method, sparsity=0.5, epochs=10, steps_per_epoch=2, update_every=4)
    ema = sparse.ema(0.9)
    for number in range(steps):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    return sparse, ema, x


@pytest.mark.filterwarnings("ignore:only .* will be averaged")
def test_stored_activations_do_not_stop_a_result(tmp_path):
    model = Storing()
    sparse, ema, x = trained(model)
    assert not model.features.is_leaf
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(model)
    for made in (sparse.finalize(), ema.finalize(), sparse.members(1)[0]):
        assert not made.features.requires_grad
        assert torch.equal(made.features, model.features)
        assert made.features.data_ptr() != model.features.data_ptr()
        assert made.kept["list"][0] is made.features is made.kept["notes"].tensor
        assert not made.kept["list"][1][0].requires_grad
    final = sparse.finalize().eval()
    for each in (final, model.eval()):
        x = torch.randn(8, 12)
        expected = each(x)  # with a graph
        cigl.save(each, tmp_path / "model.cigl")
        torch.testing.assert_close(cigl.load(tmp_path / "model.cigl")(x), expected)
        torch.testing.assert_close(cigl.sparse_inference(each)(x), expected)
        assert not each.features.is_leaf


def test_of_leaf_tensors_the_graph_is_kept():
    model = nn.Linear(3, 3)
    model.extra = torch.ones(2, requires_grad=True)
    copied = deep_copy(model)
    for made, given in ((copied.extra, model.extra), (copied.weight, model.weight)):
        assert made is not given
        assert made.requires_grad
        assert made.is_leaf


def test_what_can_not_be_copied_is_said_after_the_first_step_and_named():
    model = Locked()
    with pytest.warns(
        cigl.CiglWarning, match=r"can't be copied \(body\.lock: cannot pickle .*lock.* object\), so finalize will fail"
    ):
        sparse, _, _ = trained(model, "rigl", steps=1)
    with (
        pytest.warns(cigl.CiglWarning, match="finalizing early"),
        pytest.raises(CiglError, match=r"^the model can't be copied \(body\.lock: cannot pickle"),
    ):
        sparse.finalize()
    for use in (cigl.sparse_inference, lambda model: cigl.save(model, "unused.cigl")):
        with pytest.raises(CiglError, match=r"^the model can't be copied \(body\.lock: .*give it a __deepcopy__\.$"):
            use(model)


def test_a_trial_takes_no_copy_of_tensors():
    model = Storing()
    model(torch.randn(2, 12))
    model.table = torch.ones(3)
    before = [*model.parameters(), model.table, model.features]
    assert uncopyable(model) == ""
    assert all(a is b for a, b in zip(before, [*model.parameters(), model.table, model.features], strict=True))
    assert uncopyable(Locked()).startswith("body.lock: ")


def _recurrent():
    model = nn.LSTM(3, 3)
    parametrize.register_parametrization(model, "weight_hh_l0", nn.Tanh())
    model(torch.zeros(1, 1, 3))
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(prune.random_unstructured(nn.Linear(3, 3), "weight", 0.5)), "0.weight"),
        (nn.utils.weight_norm(nn.Linear(3, 3)), "weight"),
        (_recurrent(), "_flat_weights"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*weight_norm")
def test_a_computed_weight_would_be_an_old_value_in_a_copy(model, name):
    with pytest.raises(CiglError, match=rf"can't be copied \({name} is computed from other tensors.*prune\.remove"):
        deep_copy(model)
    assert name in uncopyable(model)
