import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy_reference import mix as mix_in_numpy
from numpy_reference import uniform as uniform_in_numpy
from scipy import stats

from cigl.sparsify.tensors.random_numbers import below, key, mix, signed, threshold, uniform


def test_fixed_numbers():
    """Checkpoints written by one version must be resumed alike by the next: these numbers may never change."""
    assert key(0, "z", 1, "fc.weight") == 0x99EFCF43EAAF461
    assert uniform(3, 0, "grow", 5, "fc.weight").tolist() == [
        0.5342487096786499,
        0.36849021911621094,
        0.012821674346923828,
    ]


@given(hnp.arrays(np.uint32, st.integers(1, 50)), st.integers(0, 2**64 - 1), st.floats(0, 1, exclude_max=True))
def test_signed_arithmetic_is_the_unsigned_one_of_numpy(positions, number, rate):
    h = mix(torch.from_numpy(positions.view(np.int32)), signed(number), signed(number >> 32))
    expected = mix_in_numpy(positions, number)
    assert np.array_equal(h.numpy().view(np.uint32), expected)
    off = below(h, threshold(rate) - (1 << 31))
    assert np.array_equal(off.numpy(), expected < np.uint32(rate * 2**32))


@pytest.mark.parametrize("start", [0, 12, 2**31 - 50, 2**32 - 100])
def test_uniform_is_that_of_numpy(start):
    assert np.array_equal(
        uniform(100, 3, "grow", 7, "w", start).numpy(), uniform_in_numpy(100, 3, "grow", 7, "w", start)
    )


def test_uniform_is_uniform():
    numbers = uniform(200_000, 0, "grow", 1, "w")
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_the_global_generator_is_not_used():
    state = torch.get_rng_state()
    uniform(10, 0, "grow", 1, "w")
    assert torch.equal(state, torch.get_rng_state())
