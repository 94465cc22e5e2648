"""What a step shows about a state: rules per weight are recognised, mixtures of weights are not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cigl.sparsify.optimizers.inference import Verdict, judge

N = 200


def one_step(seed, density=0.5):
    g = torch.Generator().manual_seed(seed)
    exists = torch.rand(N, generator=g) < density
    weights, gradient, old = (torch.randn(N, generator=g) * exists for _ in range(3))
    return exists, weights, gradient, old, g


RULES = {  # of old state, weight and gradient
    "momentum": lambda old, w, g: 0.9 * old + g + 1e-3 * w,
    "second moment": lambda old, w, g: 0.999 * old + 0.001 * g * g,
    "sum": lambda old, w, g: old + g * g,
    "largest": lambda old, w, g: torch.maximum(old.abs(), g.abs()),
    "last gradient": lambda old, w, g: g.clone(),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(seed=st.integers(0, 10**6), has_state=st.booleans())
@settings(max_examples=20, deadline=None)
def test_rules_per_weight_are_recognised(rule, dtype, seed, has_state):
    exists, w, g, old, _ = one_step(seed)
    has_state &= dtype != torch.bfloat16  # rounding hides what a step adds to a moment
    before = old if has_state else torch.zeros(N)
    after = RULES[rule](before, w, g).to(dtype)
    verdict = judge(before.to(dtype) if has_state else None, after, exists, (w, w))
    assert verdict == Verdict(True, 0.0)


@given(seed=st.integers(0, 10**6), decay=st.sampled_from([0.9, 0.999]), has_state=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_state_in_another_basis_is_not_per_weight(seed, decay, has_state):
    exists, w, g, old, generator = one_step(seed)
    basis = torch.linalg.qr(torch.randn(N, N, generator=generator)).Q
    before = old.square() + 0.1 if has_state else torch.zeros(N)
    after = decay * before + (1 - decay) * (basis @ g).square()
    assert judge(before if has_state else None, after, exists, (w, w)) == Verdict(False)


@given(seed=st.integers(0, 10**6), value=st.floats(0.125, 8.0, width=32))
@settings(max_examples=20, deadline=None)
def test_the_value_of_a_new_weight_is_read_off(seed, value):
    exists, w, g, _, _ = one_step(seed)
    after = torch.full((N,), value) + g * g  # Adagrad
    assert judge(None, after, exists, (w, w)) == Verdict(True, pytest.approx(value, rel=1e-6))
    near = w - 0.01 * g  # schedule-free
    assert judge(None, near, exists, (w, w)) == Verdict(True, "weight")


def test_what_shows_nothing_decides_nothing():
    exists, w, g, old, _ = one_step(1)
    assert judge(None, torch.zeros(N), exists, (w, w)) is None  # SOAP's first step
    assert judge(old, old.clone(), exists, (w, w)) is None  # not touched
    assert judge(old, 0.9 * old, exists, (w, w)) is None  # no gradient
    few = torch.ones(N, dtype=torch.bool)
    few[:10] = False
    assert judge(old, old + g, few, (w, w)) is None  # too few zeros
