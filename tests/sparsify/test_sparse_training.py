"""kernels="sparse" against kernels="masked": the same training, whatever the user's loop does."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import assert_zero_outside, attach, batch, mlp, run, saved, sgd, step, train
from torch import nn

import cigl
from cigl.runtime.program import library
from cigl.runtime.training import kernels as implementation
from cigl.runtime.training.rule import FEWEST_IMAGES, LEAST_WORK, WORTH, is_worth

pytestmark = pytest.mark.skipif(not library.available(), reason="no kernels")


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 4),
    )  # fmt: skip


IMAGES = (16, 2, 6, 6)


def pair(make=mlp, method="cigl", rate=0.05, **options):
    """The same model twice: masked, and on sparse kernels. (model, optimizer, sparsifier) each."""
    both = []
    for kernels in ("masked", "sparse"):
        torch.manual_seed(0)
        model = make()
        optimizer = sgd(model, lr=rate, momentum=0.9)
        both.append((model, optimizer, attach(model, optimizer, method, kernels=kernels, **options)))
    return both


def apart(a: nn.Module, b: nn.Module) -> float:
    states = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((x.double() - y.double()).abs().max()) for x, y in states)


def runs_sparse(sparse) -> bool:
    return all(row.kernels == "sparse" for row in sparse.summary().rows)


@pytest.mark.parametrize(
    ("method", "make"),
    [
        *((method, mlp) for method in cigl.methods()),
        *((method, convnet) for method in ("static", "set", "rigl", "gmp", "cigl", "sup-tickets")),
    ],
)
def test_200_steps_of_every_method_are_those_of_masked_training(method, make):
    shape = (16, 12) if make is mlp else IMAGES
    options = {"epochs": 20, "steps_per_epoch": 10}
    if cigl.method(method).update_every is not None:
        options["update_every"] = 20
    (masked, one, other), (model, two, sparse) = pair(make, method, rate=0.003, **options)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in train(model, two, 200, one=lambda *args: losses.append(step(*args, shape)) or 0.0):
            step(masked, one, number, shape)
            if number % 7 == 0 or number % 20 < 2:
                assert_zero_outside(sparse)
    assert apart(masked, model) < 1e-3
    assert all(torch.equal(mask, sparse.masks[name]) for name, mask in other.masks.items())
    assert sum(losses[-20:]) < sum(losses[:20])
    assert runs_sparse(sparse)


def test_resume_is_bit_for_bit():
    def fresh():
        torch.manual_seed(0)
        model = mlp(normalise=True)
        optimizer = sgd(model, momentum=0.9)
        return model, optimizer, attach(model, optimizer, "cigl", kernels="sparse")

    model, optimizer, sparse = fresh()
    run(model, optimizer, 7)
    state = saved(model, optimizer, sparse)
    assert state[2]["kernels"] == "sparse"
    run(model, optimizer, 9, first=8)
    other = fresh()
    run(*other[:2], 1)
    for part, each in zip(other, state, strict=True):
        part.load_state_dict(each)
    run(*other[:2], 9, first=8)
    assert runs_sparse(other[2])
    for name, value in model.state_dict().items():
        assert torch.equal(value, other[0].state_dict()[name]), name


@pytest.mark.parametrize("first", ["masked", "sparse"])
def test_a_checkpoint_made_with_one_resumes_with_the_other(first):
    # few zeros: in a row without weights, the sign of a normalised constant is one of rounding errors
    both = pair(lambda: mlp(normalise=True), sparsity=0.3)
    here, there = both if first == "masked" else reversed(both)
    run(*here[:2], 7)
    state = saved(*here)
    if first == "masked":
        del state[2]["kernels"]  # as it was before there were kernels
    for part, each in zip(there, state, strict=True):
        part.load_state_dict(each)
    run(*here[:2], 8, first=8)
    run(*there[:2], 8, first=8)
    assert apart(here[0], there[0]) < 1e-4
    assert runs_sparse(both[1][2])


@pytest.mark.parametrize("method", ["cigl", "rigl"])
def test_accumulated_and_clipped_gradients(method):
    both = pair(method=method)
    for number in range(1, 11):
        x, y = batch(number)
        norms = []
        for model, optimizer, sparse in both:
            optimizer.zero_grad()
            for part in range(2):
                F.cross_entropy(model(x.chunk(2)[part]), y.chunk(2)[part]).backward()
                assert_zero_outside(sparse)
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
        assert abs(norms[0] - norms[1]) < 1e-4 * norms[0]
    assert apart(both[0][0], both[1][0]) < 1e-5
    assert runs_sparse(both[1][2])


@pytest.mark.parametrize("before", [True, False])
def test_penalties_on_the_weights_themselves(before):
    """Their gradient is dense, and joins ours in either order."""
    both = pair(method="rigl" if before else "cigl")  # a random mask would change the weights after they were read
    for number in range(1, 11):
        x, y = batch(number)
        for model, optimizer, sparse in both:
            weight = model[0].weight
            penalty = (weight.T @ weight).pow(2).sum() + weight.sum() if before else None
            loss = F.cross_entropy(model(x), y)
            if not before:
                penalty = (weight.T @ weight).pow(2).sum() + weight.sum()
            optimizer.zero_grad()
            (loss + penalty * 0.01).backward()
            assert_zero_outside(sparse)
            optimizer.step()
            assert_zero_outside(sparse)
    assert apart(both[0][0], both[1][0]) < 1e-5


def test_losses_that_run_the_model_twice_and_backwards_that_come_twice():
    both = pair(random_mask=0.2)
    for number in range(1, 11):
        x, y = batch(number)
        for model, optimizer, sparse in both:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) + model(x.flip(0)), y)  # siamese
            loss.backward(retain_graph=True)
            loss.backward()
            assert_zero_outside(sparse)
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            optimizer.step()
    assert apart(both[0][0], both[1][0]) < 1e-5


def test_loops_that_call_parts_of_the_model():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(classes=8), nn.Linear(8, 4)

    both = pair(Parts)
    for number in range(1, 11):
        x, y = batch(number)
        for model, optimizer, sparse in both:
            optimizer.zero_grad()
            F.cross_entropy(model.head(model.body(x)), y).backward()
            optimizer.step()
            assert_zero_outside(sparse)
    assert apart(both[0][0], both[1][0]) < 1e-5
    assert runs_sparse(both[1][2])


def test_batches_of_many_sizes_and_parameters_that_freeze_and_thaw():
    both = pair()
    for number in range(1, 16):
        for model, optimizer, sparse in both:
            model[0].weight.requires_grad_(number % 3 != 0)
            model[2].bias.requires_grad_(number % 4 != 0)
            step(model, optimizer, number, (3 + number * 5 % 17, 12))
            assert_zero_outside(sparse)
    assert apart(both[0][0], both[1][0]) < 1e-5


def test_hooks_on_weights_that_change_their_gradient():
    both = pair()
    for model, *_ in both:
        model[0].weight.register_hook(lambda gradient: gradient * 2 + 1)
        model[2].weight.register_hook(lambda gradient: gradient.add_(0.1))
    for number in range(1, 11):
        for model, optimizer, sparse in both:
            step(model, optimizer, number)
            assert_zero_outside(sparse)
    assert apart(both[0][0], both[1][0]) < 1e-5


def test_a_weight_that_is_tied_to_an_embedding():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(20, 16), nn.Linear(16, 16)
            self.out = nn.Linear(16, 20, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(F.relu(self.body(self.embed(x))))

    both = pair(Tied, "rigl")
    for number in range(1, 11):
        x = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(number))
        for model, optimizer, sparse in both:
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), x.roll(1, 1).flatten()).backward()
            assert_zero_outside(sparse)
            optimizer.step()
    assert apart(both[0][0], both[1][0]) < 1e-5
    assert runs_sparse(both[1][2])


def test_copies_states_and_pickles_in_the_middle_of_a_step_hold_the_true_weights():
    (masked, one, _), (model, optimizer, _) = pair(random_mask=0.3)
    run(model, optimizer, 3)
    run(masked, one, 3)
    x, y = batch(4)
    loss = F.cross_entropy(model(x), y)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    state = model.state_dict()
    for each in copies:
        assert all(torch.equal(value, state[name]) for name, value in each.state_dict().items())
        assert all(module._compiled_call_impl is None for module in each.modules())
        each(x).sum().backward()
    assert apart(masked, copies[0]) < 1e-5
    loss.backward()
    optimizer.step()


def test_autocast_runs_masked_and_says_so():
    both = pair()
    for number in range(1, 4):
        x, y = batch(number)
        for model, optimizer, _ in both:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert apart(both[0][0], both[1][0]) == 0
    assert not runs_sparse(both[1][2])
    assert "not everything runs on sparse kernels: autocast" in str(both[1][2].summary())


def test_compiled_models_run_masked():
    both = pair()
    for model, optimizer, _ in both:
        compiled = torch.compile(model, backend="eager")
        for number in range(1, 5):
            x, y = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(compiled(x), y).backward()
            optimizer.step()
    assert apart(both[0][0], both[1][0]) < 1e-5


def test_detach_removes_everything():
    _, (model, optimizer, sparse) = pair()
    run(model, optimizer, 3)
    assert any(module._compiled_call_impl is not None for module in model.modules())
    sparse.detach()
    assert all(module._compiled_call_impl is None for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
    run(model, optimizer, 1)
    attach(model, optimizer, "cigl", kernels="sparse", initial="magnitude")


def test_finalized_models_are_plain():
    _, (model, optimizer, sparse) = pair(epochs=4)
    run(model, optimizer, 16)
    final = sparse.finalize()
    assert all(module._compiled_call_impl is None for module in final.modules())


# Where sparse kernels are used


@pytest.mark.parametrize(
    ("dense", "share", "images", "worth"),
    [
        (LEAST_WORK, 0.05, FEWEST_IMAGES, True),
        (LEAST_WORK - 1, 0.05, FEWEST_IMAGES, False),
        (LEAST_WORK, 0.05, FEWEST_IMAGES - 1, False),
        (1e9, 0.0, 128, True),
        (1e9, 1.0, 128, False),
    ],
)
@pytest.mark.parametrize("isa", WORTH)
def test_the_rule(dense, share, images, worth, isa, monkeypatch):
    monkeypatch.setattr(library, "isa", lambda: isa)
    assert is_worth(dense, dense * share, images, pixels=True) is worth
    assert is_worth(1e9, 1e9 * WORTH[isa], 128, pixels=True)
    assert not is_worth(1e9, 1e9 * WORTH[isa] * 1.01, 128, pixels=True)
    assert not is_worth(1e9, 1e9 * WORTH[isa], 128, pixels=False)


def test_auto_takes_large_sparse_layers_alone():
    def kinds(sparsity, images):
        model = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
        optimizer = sgd(model)
        sparse = attach(model, optimizer, "static", sparsity=sparsity)
        run(model, optimizer, 2, one=lambda m, o, n: step(m, o, n, (images, 784)))
        return [row.kernels for row in sparse.summary().rows]

    assert kinds(0.98, 256) == ["sparse", "sparse"]
    assert kinds(0.1, 256) == ["masked", "masked"]
    assert kinds(0.98, 4) == ["masked", "masked"]


def test_the_summary_says_what_runs_sparse():
    model = nn.Sequential(nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 4))
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "rigl", kernels="sparse")
    assert "kernels" not in str(sparse.summary()).splitlines()[1]
    run(model, optimizer, 4)
    assert [row.kernels for row in sparse.summary().rows] == ["masked", "sparse"]
    assert sparse.summary().total.kernels == "1 of 2 sparse"
    head = str(sparse.summary()).splitlines()[1]
    assert head.split()[-1] == "kernels"


# Transformers


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformers_with_dropout(batch_first, norm_first):
    def make():
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=batch_first, norm_first=norm_first)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    both = pair(make, "rigl", rate=0.01, sparsity=0.5)
    for number in range(1, 9):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(5, 3, 16, generator=generator)
        losses = []
        for model, optimizer, sparse in both:
            torch.manual_seed(number)
            loss = model(x).pow(2)[..., :3].mean()
            optimizer.zero_grad()
            loss.backward()
            assert_zero_outside(sparse)
            optimizer.step()
            losses.append(float(loss))
        assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0])
    assert apart(both[0][0], both[1][0]) < 1e-4
    assert runs_sparse(both[1][2])


def test_attention_with_masks_or_weights_is_torchs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x, **options):
            return self.attention(x, x, x, **options)[0]

    x, mask = torch.randn(3, 5, 16), torch.ones(5, 5).triu(1).bool()
    causal = {"attn_mask": mask, "is_causal": True, "need_weights": False}
    calls = ({"need_weights": False}, {}, {"attn_mask": mask}, causal)
    both = pair(Net, "static")
    for options in calls:
        outputs = [model(x, **options) for model, *_ in both for _ in range(2)]
        assert (outputs[0] - outputs[3]).abs().max() < 1e-5
    with pytest.raises(RuntimeError, match="is_causal"):
        both[1][0](x, need_weights=False, is_causal=True)


# Errors


def unchanged(model: nn.Module, message: str, optimizer=None, **options) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(cigl.CiglError, match=message) as caught:
        attach(model, optimizer or sgd(model), "cigl", **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        assert module._compiled_call_impl is None
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_unknown_kernels():
    unchanged(mlp(), "unknown kernels 'fast': choose from auto, masked, sparse", kernels="fast")
    unchanged(mlp(), "kernels", kernels=None)
    unchanged(mlp(), "kernels", kernels=["sparse"])


def test_sparse_without_the_library(monkeypatch):
    monkeypatch.setattr(implementation.library, "_load", lambda: (None, "cigl was installed without its kernels."))
    unchanged(mlp(), r"kernels='sparse' is not possible: cigl was installed without .*; use kernels=", kernels="sparse")
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", kernels="auto")
    run(model, optimizer, 3)
    assert not runs_sparse(sparse)


def test_sparse_where_nothing_can_run_so():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3))
    unchanged(model, "not possible: the model has no nn.Linear, nn.Conv2d", kernels="sparse")
    unchanged(mlp().double(), "float32 on the CPU, and the model is torch.float64 on cpu", kernels="sparse")
    unchanged(mlp().bfloat16(), "torch.bfloat16", kernels="sparse")


def test_grouped_convolutions_alone_are_refused_or_run_masked():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=4))
    unchanged(model, "not possible: all convolutions of the model have groups", kernels="sparse")
