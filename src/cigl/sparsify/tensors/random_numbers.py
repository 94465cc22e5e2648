"""Random numbers without a generator: a pure function of seed, stream, step, name and position.

Resuming, another process and another device agree without any state, and torch's global generator is never touched.
The mixing is MurmurHash3's 32-bit finalizer over position * odd constant, with the first half of a 64-bit key put in
before it and the second half in its middle, so that two keys never give shifted copies of one sequence. It runs where
the positions are: in int32, whose products wrap, with the bits that an arithmetic shift brings in masked away.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import torch
from torch import Tensor

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


def signed(number: int) -> int:
    """The int32 with the same 32 bits."""
    return (number + (1 << 31)) % LARGEST - (1 << 31)


def mix(positions: Tensor, low: int | Tensor, high: int | Tensor) -> Tensor:
    """Hash int32 positions with the halves of a key, each a number or one per position, to int32."""
    h = positions * signed(0x9E3779B9)
    h ^= low
    _shift(h, 16)
    h *= signed(0x85EBCA6B)
    h += high
    _shift(h, 13)
    h *= signed(0xC2B2AE35)
    _shift(h, 16)
    return h


def _shift(h: Tensor, bits: int) -> None:
    """h ^= h >> bits, as of unsigned numbers."""
    h ^= (h >> bits).bitwise_and_((1 << 32 - bits) - 1)


def threshold(rate: float) -> int:
    """Hashes below it switch a weight off, as often as the rate says."""
    return int(rate * LARGEST)


def below(h: Tensor, limit: int | Tensor) -> Tensor:
    """Whether hashes, as unsigned numbers, are below ``limit`` + 2^31: as signed ones with the first bit turned."""
    return (h ^ signed(1 << 31)) < limit


def uniform(
    size: int, seed: int, stream: str, step: int, name: str, start: int = 0, device: torch.device | None = None
) -> Tensor:
    """One number in [0, 1) for each of ``size`` positions of a tensor, from ``start`` on."""
    kind = torch.int32 if size < 1 << 31 else torch.int64
    positions = torch.arange(size, dtype=kind, device=device).to(torch.int32) + signed(start)
    k = key(seed, stream, step, name)
    h = mix(positions, signed(k), signed(k >> 32))
    return ((h >> 8) & (1 << 24) - 1).to(torch.float32) * 2.0**-24  # 24 bits are what a float32 holds exactly
