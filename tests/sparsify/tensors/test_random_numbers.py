import numpy as np
import torch
from scipy import stats

from cigl.sparsify.methods.random_mask import Draw
from cigl.sparsify.tensors.random_numbers import key, uniform


def test_fixed_numbers():
    """Checkpoints written by one version must be resumed alike by the next: these numbers may never change."""
    assert key(0, "z", 1, "fc.weight") == 0x99EFCF43EAAF461
    assert uniform(3, 0, "grow", 5, "fc.weight").tolist() == [
        0.5342487096786499,
        0.36849021911621094,
        0.012821674346923828,
    ]


def test_uniform_is_uniform():
    numbers = uniform(200_000, 0, "grow", 1, "w")
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_the_global_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    Draw({"w": np.arange(100, dtype=np.uint32)}).off([0.1], 0, "z", 1)
    uniform(10, 0, "grow", 1, "w")
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
