"""Means over seeds and paired differences, with the variance of seeds and that of test points kept apart.

A number y of seed i on test points T is  mu + a_i + b(T) + c_i(T).  The variance of a mean over k seeds is then
var(a + c) / k + var(b). The spread over seeds, on the same points, estimates var(a + c); the covariance of two seeds'
bootstrap draws, which share their resamples, estimates var(b): the two add up, and nothing counts twice. What the draws
vary by without covarying is var(c): three seeds may by chance lie closer together than that, and then it counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cigl.calibrate.measures.bins import Array
from cigl.calibrate.measures.intervals import LEVEL, beta_quantile
from cigl.report.evidence.measurements import Measured

NOTABLE = 0.15  # the paper's bold numbers: an ECE that falls by at least this share
_NORMAL = 1.959963985  # where the normal distribution has 2.5 % above
_AGAIN = math.sqrt(2) - 1  # what resampling adds to pure noise, in units of that noise


@dataclass(frozen=True)
class OverSeeds:
    """A mean over seeds, or a mean difference of paired seeds, with its 95 % interval.

    ``seed_error`` and ``test_error`` are the two parts of its standard error: what more seeds, and what more test
    points would shrink. One seed says nothing about the spread over seeds: both its seed numbers are None, and its
    interval is for that one network.
    """

    seeds: int
    value: float
    seed_sd: float | None  # the std that papers print
    seed_error: float | None
    test_error: float
    low: float
    high: float
    floor: float = 0.0

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def mean(numbers: Mapping[int, Measured]) -> OverSeeds:
    """The mean of one number over seeds.

    A calibration error is raised by noise, by an amount between nothing and ``raised``: its interval takes that for
    uniform, and does not reach below 0.

    >>> flat = np.zeros(4)
    >>> mean({0: Measured(0.5, flat), 1: Measured(0.7, flat)}).seed_sd.__round__(4)
    0.1414
    """
    measured = list(numbers.values())
    up = _mean(raised(one) for one in measured)
    result = _over_seeds([one.value for one in measured], [one.draws for one in measured], up, 0.0)
    floor = _mean(one.floor for one in measured)
    low = max(result.low, 0.0) if floor else result.low
    return OverSeeds(**(vars(result) | {"low": low, "floor": floor}))


def difference(a: Mapping[int, Measured], b: Mapping[int, Measured]) -> OverSeeds | None:
    """a - b over the seeds that both have: the same seeds, the same test points, the same resamples.

    Noise may have raised either of two calibration errors: the interval has room for both.
    """
    seeds = [seed for seed in a if seed in b]
    if not seeds:
        return None
    values = [a[seed].value - b[seed].value for seed in seeds]
    draws = [a[seed].draws - b[seed].draws for seed in seeds]
    return _over_seeds(values, draws, _mean(raised(a[s]) for s in seeds), _mean(raised(b[s]) for s in seeds))


def raised(one: Measured) -> float:
    """The most that noise may have raised a calibration error.

    Where bins have no gaps, noise makes all of the error (the floor), and a resample adds sqrt(2) - 1 of it once
    more; where gaps are much larger than noise, it adds nothing, and neither does a resample. So what resampling
    adds bounds the noise.
    """
    again = max(float(one.draws.mean()) - one.value, 0.0)
    return min(again / _AGAIN, one.floor)


def _over_seeds(values: Sequence[float], draws: Sequence[Array], above: float, below: float) -> OverSeeds:
    """``above`` and ``below``: the most by which noise may have moved the value up and down.

    Uniform over what is possible, each has half of it as its mean and a twelfth of its square as its variance; with
    four in place of 1.96^2, a third of the square under the root.
    """
    k, value = len(values), _mean(values)
    if k == 1:
        seed_sd = seed_error = None
        test_variance, reach = float(np.var(draws[0])), _NORMAL
        variance = test_variance
    else:
        seed_sd = float(np.std(values, ddof=1))
        covariance = np.cov(np.stack(draws))
        own = float(np.trace(covariance)) / k
        test_variance = max(float(covariance.sum()) - k * own, 0.0) / (k * (k - 1))
        seed_error = math.sqrt(max(seed_sd**2, own - test_variance) / k)
        variance = seed_error**2 + test_variance
        # Satterthwaite 1946: k - 1 degrees of freedom for the spread over seeds, so many for the draws that they don't
        # count. Measured coverage where all is normal: 93 to 98 % for 3 seeds, 94 to 98 % for 5, 90 to 98 % for 2.
        share = seed_sd**2 / k / variance if variance > 0 else 1.0
        reach = t_quantile((k - 1) / max(share, 1e-9) ** 2)
    middle = value - above / 2 + below / 2
    half = math.sqrt(reach**2 * variance + (above**2 + below**2) / 3)
    return OverSeeds(k, value, seed_sd, seed_error, math.sqrt(test_variance), middle - half, middle + half)


def t_quantile(freedom: float) -> float:
    """Where Student's t has 2.5 % above; interpolated, right to 5 digits.

    >>> round(t_quantile(2), 4), round(t_quantile(1e9), 4)
    (4.3027, 1.96)
    """
    inverse, quantiles = _t_table()
    return math.exp(float(np.interp(1 / max(freedom, 1.0), inverse, quantiles)))


@cache
def _t_table() -> tuple[Array, Array]:
    """1 / freedom, and the logarithm of the quantile; t^2 = freedom (1 - x) / x with x from a Beta distribution."""
    inverse = np.linspace(0, 1, 801)[1:]
    x = beta_quantile(np.full(inverse.size, 1 - LEVEL), 0.5 / inverse, np.full(inverse.size, 0.5))
    return np.append(0.0, inverse), np.append(math.log(_NORMAL), np.log((1 - x) / x / inverse) / 2)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
