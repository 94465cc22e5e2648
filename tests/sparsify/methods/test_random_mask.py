import numpy as np
import pytest
import torch
from scipy import stats

from cigl.sparsify.tensors.random_numbers import below, key, mix, signed, threshold

SIZE = 50_000


def z(step, seed=0, name="w", share=0.1, positions=None):
    """Where a weight is switched off."""
    positions = np.arange(SIZE) if positions is None else positions
    k = key(seed, "z", step, name)
    h = mix(torch.from_numpy(positions.astype(np.int32)), signed(k), signed(k >> 32))
    mask = np.zeros(SIZE, bool)
    mask[positions] = below(h, threshold(share) - (1 << 31))
    return mask


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_rate(share):
    counts = [z(t, share=share).sum() for t in range(200)]
    assert stats.binomtest(int(sum(counts)), 200 * SIZE, share).pvalue > 1e-4
    # and the spread of the counts is a binomial's
    variance = np.var(counts, ddof=1) / (SIZE * share * (1 - share))
    assert 0.7 < variance < 1.35


def test_steps_seeds_names_and_neighbours_are_independent():
    base = z(1)
    others = [z(2), z(1, seed=1), z(1, name="v"), np.roll(base, 1), np.roll(base, 64), np.roll(z(2), 1), z(1 + 2**20)]
    for other in others:
        both = int((base & other).sum())
        expected = SIZE * 0.01
        assert abs(both - expected) < 4.5 * np.sqrt(expected), both


def test_no_two_steps_are_shifted_copies():
    spectrum = np.fft.rfft(z(1).astype(float) - 0.1)
    for step in range(2, 30):
        correlation = np.fft.irfft(spectrum * np.conj(np.fft.rfft(z(step).astype(float) - 0.1)), SIZE)
        assert np.abs(correlation).max() / (SIZE * 0.09) < 0.03


def test_a_weight_is_switched_off_evenly_over_steps():
    total = sum(z(t).astype(int) for t in range(300))
    p = stats.kstest(stats.binom.cdf(total + stats.uniform.rvs(size=SIZE, random_state=0) - 0.5, 300, 0.1), "uniform")
    assert total.mean() == pytest.approx(30, abs=0.2)
    assert total.var() == pytest.approx(27, rel=0.03)
    assert p.statistic < 0.05


def test_z_depends_on_the_position_and_not_on_the_other_active_weights():
    half = np.arange(0, SIZE, 2)
    assert np.array_equal(z(5)[::2], z(5, positions=half)[::2])


def test_fixed_values():
    """Checkpoints written by one version must be resumed alike by the next: these numbers may never change."""
    assert np.flatnonzero(z(1, positions=np.arange(40))).tolist() == [9, 25]
