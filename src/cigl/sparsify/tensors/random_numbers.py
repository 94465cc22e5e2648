"""Random numbers without a generator: a pure function of seed, stream, step, name and position.

Resuming, another process and another device agree without any state, and torch's global generator is
never touched. The mixing is MurmurHash3's 32-bit finalizer over position * odd constant, with the first
half of a 64-bit key put in before it and the second half in its middle, so that two keys never give
shifted copies of one sequence. It runs in numpy on the CPU for every device: only the positions of the
few weights that are switched off travel.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint32]
_MASK64 = (1 << 64) - 1
LARGEST = 1 << 32  # positions are 32-bit


def key(seed: int, stream: str, step: int, name: str) -> int:
    """64 bits from everything but the position (SplitMix64 over the four)."""
    return _absorb(_prefix(seed, stream, name), step)


@lru_cache(maxsize=4096)
def _prefix(seed: int, stream: str, name: str) -> int:
    return _absorb(_absorb(_absorb(0, seed), zlib.crc32(stream.encode())), zlib.crc32(name.encode()))


def _absorb(state: int, part: int) -> int:
    state = (state ^ part & _MASK64) + 0x9E3779B97F4A7C15 & _MASK64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK64
    return state ^ state >> 31


def mix(positions: Positions, spans: Sequence[tuple[int, int, int]]) -> Positions:
    """Hash all positions at once; a span is (start, end, key) of one layer's part."""
    h = positions * np.uint32(0x9E3779B9)
    for start, end, k in spans:
        h[start:end] ^= np.uint32(k & 0xFFFFFFFF)
    t = h >> np.uint32(16)
    h ^= t
    h *= np.uint32(0x85EBCA6B)
    for start, end, k in spans:
        h[start:end] += np.uint32(k >> 32)
    np.right_shift(h, np.uint32(13), out=t)
    h ^= t
    h *= np.uint32(0xC2B2AE35)
    np.right_shift(h, np.uint32(16), out=t)
    h ^= t
    return h


def uniform(size: int, seed: int, stream: str, step: int, name: str, start: int = 0) -> npt.NDArray[np.float32]:
    """One number in [0, 1) for each of ``size`` positions of a tensor, from ``start`` on."""
    h = mix(np.arange(start, start + size, dtype=np.uint32), [(0, size, key(seed, stream, step, name))])
    h >>= np.uint32(8)  # 24 bits are what a float32 holds exactly
    return h.astype(np.float32) * np.float32(2.0**-24)
