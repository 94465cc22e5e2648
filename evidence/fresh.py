"""Images for the table of the rising mask that neither the search, nor an earlier look at the table, has used.

They had the training images up to number 10,000, those from 20,000 to 40,000 (search.py), and the official test images.
Here images are learned from that follow on number 10,000, and 10,000 from number 40,000 on are the test images.
"""

from __future__ import annotations

from dataclasses import replace

import cigl.data
from cigl.data import Source


def fashion_mnist() -> Source:
    return _fresh("fashion-mnist")


def cifar10() -> Source:
    return _fresh("cifar10")


def _fresh(name: str) -> Source:
    source = cigl.data.open(name)
    train, test = (source.train.take(range(first, first + 10_000)) for first in (10_000, 40_000))
    return replace(source, name=f"{name}, other images", train=train, test=test)
