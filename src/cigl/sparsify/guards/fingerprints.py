"""Checksums of tensors, bit by bit; of a sharded one the same as of the whole, from the parts' alone."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import gathered

_POLYNOMIAL = 0xEDB88320  # of CRC-32, in zlib's bit order
_ONE, _X8 = 1 << 31, 1 << 23  # the polynomials 1 and x^8


def fingerprint(tensor: Tensor) -> int:
    """CRC-32 of the row-major bytes."""
    return zlib.crc32(tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


def fingerprints(layer: Layer) -> tuple[int, dict[str, int]]:
    """Of a layer's weights and of its optimizer state; where it is sharded, all processes must ask."""
    states = layer.states()
    tensors = [layer.true_weight(), *(state.tensor for state in states)]
    found = [fingerprint(tensor) for tensor in tensors]
    if layer.part.group is not None:
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        parts = gathered(layer.part, torch.tensor(found + sizes)).tolist()
        found = [_of_parts([(row[i], row[i + len(tensors)]) for row in parts]) for i in range(len(tensors))]
    return found[0], {state.name: checksum for state, checksum in zip(states, found[1:], strict=True)}


def _of_parts(parts: list[tuple[int, int]]) -> int:
    """CRC-32 of bytes from the checksums and lengths of consecutive parts, as zlib's crc32_combine has it."""
    result = 0
    for checksum, length in parts:
        result = _times(_power(length), result) ^ checksum
    return result


def _power(exponent: int) -> int:
    """x^(8 * exponent) modulo the polynomial."""
    result, base = _ONE, _X8
    while exponent:
        if exponent & 1:
            result = _times(result, base)
        base, exponent = _times(base, base), exponent >> 1
    return result


def _times(a: int, b: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
