"""CIFAR-10 for choosing settings of the paper's WRN-22-2, without its test images.

As in RigL's reproduction, 45,000 training images are learned from; here the other 5,000 are what
settings are judged by.
"""

from __future__ import annotations

from dataclasses import replace

import cigl.data
from cigl.data import Source

TRAINING = 45_000


def cifar10_validation() -> Source:
    source = cigl.data.open("cifar10")
    train, test = (source.train.take(range(*part)) for part in ((0, TRAINING), (TRAINING, 50_000)))
    return replace(source, name="cifar10, 5,000 training images as test images", train=train, test=test)
