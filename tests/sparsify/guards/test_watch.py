"""What is not going as announced is said in the first steps, and an ordinary training hears nothing."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, mlp, run, sgd, step
from torch import nn

import cigl


def messages(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if issubclass(w.category, cigl.CiglWarning)]


def built(method="cigl", optimizer=sgd, **options):
    model = mlp()
    opt = optimizer(model)
    return model, opt, attach(model, opt, method, **options)


def hidden_update(parameters, lr=0.05):
    """An optimizer of another library: it writes through .data, which leaves no trace."""
    for p in parameters:
        if p.grad is not None:
            p.data.add_(p.grad, alpha=-lr)
            p.grad = None


@pytest.mark.parametrize("method", ["rigl", "cigl"])
@pytest.mark.parametrize("kind", ["torch", "hidden"])
def test_another_optimizer_trains(method, kind):
    model, _, sparse = built(method)
    other = sgd(model)

    def one(number):
        F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
        if kind == "torch":
            other.step()
            other.zero_grad()
        else:
            hidden_update(model.parameters())

    said = [messages(lambda number=number: one(number)) for number in range(1, 8)]
    assert sum(map(len, said)) == 1
    assert "no step of the attached optimizer is seen" in said[3][0]  # in the fourth pass
    assert sparse.step == 0


def test_ordinary_loops_hear_nothing():
    """Accumulation, a perturbation within the step (SAM), skipped steps, evaluation between: all as announced."""

    def accumulate():
        model, optimizer, _ = built()
        for number in range(1, 13):
            for part in range(4):
                F.cross_entropy(model(batch(part)[0]), batch(part)[1]).backward()
                if part == 2:
                    with torch.no_grad():
                        model.eval()(batch(0)[0])
                        model.train()
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(number % 2))

    def perturb():
        model, optimizer, _ = built()
        for number in range(1, 13):
            F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            moved = [0.01 * p.grad for p in model.parameters()]
            with torch.no_grad():
                for p, e in zip(model.parameters(), moved, strict=True):
                    p.add_(e)
            optimizer.zero_grad()
            F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            with torch.no_grad():
                for p, e in zip(model.parameters(), moved, strict=True):
                    p.sub_(e)
            optimizer.step()
            optimizer.zero_grad()

    def skip():
        model, optimizer, _ = built()
        for number in range(1, 13):  # as a GradScaler does at its start
            F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            if number > 8:
                optimizer.step()
            optimizer.zero_grad()

    def closure():
        model, optimizer, _ = built("rigl")
        for number in range(1, 13):

            def compute(number=number, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch(number)[0]), batch(number)[1])
                loss.backward()
                return loss

            optimizer.step(compute)

    def frozen_and_idle():
        model, optimizer, _ = built("rigl", layers={"0": 0.3})
        model[0].weight.requires_grad_(False)
        run(model, optimizer, 12)

    for loop in (accumulate, perturb, skip, closure, frozen_and_idle):
        assert messages(loop) == [], loop.__name__


def test_a_copy_is_trained_instead():
    model, optimizer, _ = built("rigl")
    other = copy.deepcopy(model)
    said = messages(lambda: [step(other, optimizer, number) for number in range(1, 5)])
    assert len(said) == 1
    assert "3 optimizer steps were seen, but no gradient has reached a sparse weight" in said[0]


def test_a_layer_that_is_not_used():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.idle = mlp(), nn.Linear(12, 4)

        def forward(self, x):
            return self.body(x)

    model = Unused()
    optimizer = sgd(model)
    attach(model, optimizer, "rigl")
    said = messages(lambda: run(model, optimizer, 12))
    assert len(said) == 1
    assert "no gradient has reached idle.weight in 10 steps" in said[0]
    assert "layers={'idle.weight': False}" in said[0]


@pytest.mark.parametrize("method", ["rigl", "cigl"])
def test_weights_that_do_not_move(method):
    model, optimizer, _ = built(method, optimizer=lambda m: sgd(m, lr=0.0))
    said = messages(lambda: run(model, optimizer, 12))
    assert len(said) == 1
    assert "2.weight have not moved in 10 optimizer steps: look at the learning rate" in said[0]


def test_a_training_that_goes_on_and_on():
    model, optimizer, sparse = built("rigl", epochs=10, steps_per_epoch=4)
    said = {number: messages(lambda number=number: step(model, optimizer, number)) for number in range(1, 50)}
    assert {number: len(m) for number, m in said.items() if m} == {41: 1, 45: 1}
    assert "45 steps were seen, more than a tenth past the 40 announced" in said[45][0]
    assert any("finalizing late: 49 of the 40 announced steps" in m for m in messages(sparse.finalize))


def test_batches_counted_as_steps():
    model, optimizer, sparse = built("rigl")
    for _ in range(10):
        for part in range(4):
            F.cross_entropy(model(batch(part)[0]), batch(part)[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    (said,) = messages(sparse.finalize)
    assert "10 of the 40 announced steps were seen, with 4 backward passes in each" in said
    assert "steps_per_epoch counts optimizer steps, not batches" in said


def test_a_training_of_about_the_announced_length():
    model, optimizer, sparse = built("rigl")
    run(model, optimizer, 38)
    assert messages(sparse.finalize) == ["finalizing early: 38 of the 40 announced steps were seen."]
    run(model, optimizer, 2, first=39)
    assert messages(sparse.finalize) == []
    model, optimizer, sparse = built("rigl")
    run(model, optimizer, 20)
    assert "the schedule of rounds and averaging was not completed" in messages(sparse.finalize)[0]
