"""The library's sentences name arguments as Python has them; on the command line they name flags."""

from __future__ import annotations

import re

from cigl.train.config import KEYS

_FLAGS = {key: f"--{key.replace('_', '-')}" for key in KEYS} | {"options": "--option"}
_KEY = "|".join(sorted(map(re.escape, _FLAGS), key=len, reverse=True))
_LONG = "|".join(key for key in KEYS if "_" in key)
_FREE = r"(?<![\w.'\"`-])"  # not part of another name, an attribute, a text or a flag


def in_flags(message: str) -> str:
    """
    >>> in_flags("sparsity is 1.5: give a share from 0 to below 1.")
    '--sparsity is 1.5: give a share from 0 to below 1.'
    >>> in_flags("averaging starts too soon: raise average_from or lower update_until.")
    'averaging starts too soon: raise --average-from or lower --update-until.'
    >>> in_flags("cigl.method('cigl', average_of='p*W') averages its expectation instead.")
    '--average-of p*W averages its expectation instead.'
    >>> in_flags("fan_in_factor=0.5 switches the random mask off")
    '--option fan_in_factor=0.5 switches the random mask off'
    """
    message = re.sub(r"cigl\.method\('[\w-]+', (\w+=[^)]*)\)", r"\1", message)
    message = message.replace("lower steps_per_epoch or", "raise epochs, or lower")
    message = re.sub(rf"{_FREE}({_KEY})=(['\"]?)([^\s,;:)]+?)\2(?=[\s,;:)]|$)", _with_value, message)
    message = re.sub(r"^(?!options)(\w*_\w*)=(?=\S)", r"--option \1=", message)
    message = re.sub(rf"^({_KEY})(?= (is|are|would|can't)\b)", _flag, message)
    message = re.sub(rf"\b(?<=lower |raise |allow )({_KEY})\b|\b(?<=set )({_KEY})\b", _flag, message)
    return re.sub(rf"{_FREE}({_LONG})\b(?!=)", _flag, message)


def _flag(match: re.Match[str]) -> str:
    return _FLAGS[match[1] or match[2]]


def _with_value(match: re.Match[str]) -> str:
    return f"{_FLAGS[match[1]]} {match[3]}"
