import numpy as np
import pytest
from scipy import stats

from cigl.sparsify.methods.random_mask import Draw

SIZE = 50_000


def z(step, seed=0, name="w", share=0.1, positions=None):
    positions = np.arange(SIZE, dtype=np.uint32) if positions is None else positions
    off, counts = Draw({name: positions}).off([share], seed, "z", step)
    assert counts == [len(off)]
    mask = np.zeros(SIZE, bool)
    mask[off] = True
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
    half = np.arange(0, SIZE, 2, dtype=np.uint32)
    assert np.array_equal(z(5)[::2], z(5, positions=half)[::2])


def test_layers_drawn_together_equal_layers_drawn_alone():
    parts = {"a": np.arange(100, dtype=np.uint32), "b": np.arange(7, 5000, 3, dtype=np.uint32)}
    off, counts = Draw(parts).off([0.2, 0.2], 3, "z", 11)
    alone = [Draw({name: part}).off([0.2], 3, "z", 11)[0] for name, part in parts.items()]
    assert np.array_equal(off, np.concatenate(alone))
    assert counts == [len(part) for part in alone]


def test_fixed_values():
    """Checkpoints written by one version must be resumed alike by the next: these numbers may never change."""
    assert Draw({"w": np.arange(40, dtype=np.uint32)}).off([0.1], 0, "z", 1)[0].tolist() == [9, 25]
