"""Each forward of forwards.py trained on sparse kernels and masked, from the same seed: the same loss and gradients."""

import copy
import warnings

import cases_forwards
import forwards
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cigl
from cigl.runtime.program import library
from cigl.sparsify.loop.kernels import NoKernels

pytestmark = pytest.mark.skipif(not library.available(), reason="no kernels")

METHOD = cigl.method("cigl", random_mask=0.1, update_every=3)


def training(model, kernels):
    """The optimizer and the sparsifier."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times = {"epochs": 5, "steps_per_epoch": 20}
    return optimizer, cigl.attach(model, optimizer, METHOD, sparsity=0.6, kernels=kernels, **times)


def trained(build, kernels, steps=8, call=lambda model, step: model):
    """Loss and gradients of each step, the sparsifier, and what it said; ``call`` is what is called in a step."""
    torch.manual_seed(0)
    model, found = build(), []
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cigl.CiglWarning)
        optimizer, sparse = training(model, kernels)
        for step in range(steps):
            x = torch.randn(16, 12, generator=generator)
            model.each_step(step)
            loss = F.cross_entropy(call(model, step)(x).float(), x[:, :4].argmax(1))
            loss = loss + getattr(model, "penalty", lambda: 0.0)()
            optimizer.zero_grad()
            loss.backward()
            gradients = {n: copy.deepcopy(p.grad) for n, p in model.named_parameters() if p.grad is not None}
            found.append((loss.item(), gradients))
            optimizer.step()
    said = [str(each.message) for each in caught if issubclass(each.category, cigl.CiglWarning)]
    return found, sparse, said


def assert_same(build, near=1e-5, kernels="sparse", **options):
    ours, sparse, said = trained(build, kernels, **options)
    theirs, _, _ = trained(build, "masked", **options)
    for step, ((loss, gradients), (expected, others)) in enumerate(zip(ours, theirs, strict=True)):
        assert loss == pytest.approx(expected, rel=near), (step, said)
        assert gradients.keys() == others.keys()
        largest = max(float(other.norm()) for other in others.values())
        for name, other in others.items():
            apart = float((gradients[name] - other).norm())
            assert apart <= near * max(float(other.norm()), 0.1 * largest), (step, name, said)
    return sparse, said


def is_said(said, *parts):
    return any(all(part in each for part in parts) for each in said)


def test_every_case_is_run_here():
    others = {case.name for case in cases_forwards.CASES} - set(forwards.BUILDS)
    assert len(others) == 5  # the tests at the end


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("name", forwards.BUILDS)
def test_the_same_as_masked(name):
    sparse, said = assert_same(forwards.BUILDS[name])
    assert sparse._context.kernels.sparse
    captured = sparse._context.kernels._capture.mode.name
    assert getattr(forwards, captured) == forwards.HOW[name], said
    assert captured == "WHOLE" or is_said(said, "can't be captured")
    assert not is_said(said, "differ")
    assert is_finished(sparse)


def is_finished(sparse):
    """Its result computes what the masked model does."""
    model = sparse.model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        final = sparse.finalize(torch.randn(32, 12).split(16), average=False).eval()
    weights = dict(final.named_parameters())
    assert all(not weights[name][~mask].any() for name, mask in sparse.masks.items())
    return final(torch.randn(3, 12)).shape == model(torch.randn(3, 12)).shape


class Composed(forwards.Net):
    """The middles of several forwards, one after the other, in parts that share nothing."""

    def __init__(self, names):
        super().__init__()
        self.parts = nn.ModuleList(forwards.BUILDS[name]() for name in names)

    def middle(self, h):
        for part in self.parts:
            h = torch.tanh(part.middle(h))
        return h

    def each_step(self, step):
        for part in self.parts:
            part.each_step(step)

    def penalty(self):
        return sum(part.penalty() for part in self.parts if isinstance(part, forwards.Stores | forwards.ReadsWeight))


MIDDLES = [name for name, make in forwards.BUILDS.items() if "middle" in vars(make) and make.__init__ is not None]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(MIDDLES), min_size=2, max_size=4), st.sampled_from(["sparse", "auto"]))
def test_any_of_them_together(names, kernels):
    assert_same(lambda: Composed(names), near=5e-5, kernels=kernels, steps=6)


def test_autocast_that_is_switched_on_in_training():
    """Z acts in steps that torch computes after steps on kernels."""

    def call(model, step):
        def under_autocast(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=step in (2, 4, 5)):
                return model(x)

        return under_autocast

    _, said = assert_same(forwards.Net, call=call)
    assert is_said(said, "autocast")


@pytest.mark.parametrize("begin", [0, 4])
def test_torch_compile_has_sparse_kernels_inside(begin):
    compiled = {}

    def call(model, step):
        if step < begin:
            return model
        return compiled.setdefault(id(model), torch.compile(model, backend="eager"))

    sparse, said = assert_same(forwards.Net, call=call)
    assert sparse._context.kernels.sparse == set(sparse.model.parameters())
    assert not said or not is_said(said, "sparse kernels")


def compiled_in_place(model, step, begin):
    if step == begin:
        model.compile(backend="eager")
    return model


@pytest.mark.parametrize("begin", [0, 4])
def test_compiling_a_model_in_place_runs_dense_and_says_so(begin):
    sparse, said = assert_same(forwards.Net, kernels="auto", call=lambda m, step: compiled_in_place(m, step, begin))
    assert is_said(said, "model.compile() runs the model as dense layers")
    assert "model.compile()" in str(sparse.summary())


def test_compiling_a_model_in_place_is_refused_where_kernels_are_asked_for():
    with pytest.raises(cigl.CiglError, match=r"model.compile\(\).*kernels='auto'"):
        trained(forwards.Net, "sparse", call=lambda m, step: compiled_in_place(m, step, 3))
    model = forwards.Net()
    model.compile(backend="eager")
    with pytest.raises(cigl.CiglError, match=r"model.compile\(\).*kernels='auto'"):
        training(model, "sparse")


@pytest.mark.filterwarnings("ignore")
def test_gradient_checkpointing_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=11, max_position_embeddings=12, num_labels=4, **sizes)
    results = []
    for kernels in ("sparse", "masked"):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).train()
        model.gradient_checkpointing_enable()
        optimizer, sparse = training(model, kernels)
        assert isinstance(sparse._context.kernels, NoKernels) is (kernels == "masked")
        losses = []
        for step in range(7):
            torch.manual_seed(step)
            tokens = torch.randint(0, 11, (4, 12))
            loss = model(input_ids=tokens, labels=tokens[:, 0] % 4).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
        assert kernels == "masked" or sparse._context.kernels.sparse
    assert results[0] == pytest.approx(results[1], rel=1e-5)
