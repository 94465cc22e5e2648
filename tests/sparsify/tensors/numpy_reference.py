"""Hashing and topology in plain numpy, from the description alone: what every device must give, bit for bit."""

import numpy as np

from cigl.sparsify.tensors.random_numbers import key


def mix(positions, number):
    """MurmurHash3's finalizer over position * odd constant, with the halves of a 64-bit key."""
    h = positions.astype(np.uint32) * np.uint32(0x9E3779B9)
    h ^= np.uint32(number & 0xFFFFFFFF)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h += np.uint32(number >> 32)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def switched_off(positions, rate, seed, stream, step, name):
    return mix(positions, key(seed, stream, step, name)) < np.uint32(rate * 2**32)


def uniform(size, seed, stream, step, name, start=0):
    h = mix(np.arange(start, start + size, dtype=np.uint64), key(seed, stream, step, name))
    return (h >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def largest(scores, count):
    """A stable sort: of equal scores the first."""
    return np.sort(np.argsort(-scores, kind="stable")[: max(0, count)])


def new_mask(mask, weights, gradients, keep, grow):
    """Keep the largest active weights, then grow the largest gradients outside of them."""
    active = np.flatnonzero(mask)
    kept = active[largest(weights[active], keep)]
    after = np.zeros_like(mask)
    after[kept] = True
    if grow:
        outside = gradients.copy()
        outside[kept] = -np.inf
        after[largest(outside, grow)] = True
    return after
