"""Datasets know what their classes are called, and what an image becomes."""

import pytest
import torch

import cigl
import cigl.data
from cigl.common.errors import CiglError
from cigl.data.catalogue import FETCHED
from cigl.data.sources.class_names import CIFAR100

TWO = (torch.randn(6, 3, 4, 4), torch.arange(6) % 2)


@pytest.mark.parametrize("name", sorted(set(FETCHED) - {"tiny-imagenet"}))
def test_a_name_for_each_class(name):
    names = FETCHED[name].facts.names
    assert len(names) == len(set(names)) == FETCHED[name].facts.classes


def test_cifar100_is_numbered_in_alphabetical_order():
    assert list(CIFAR100) == sorted(CIFAR100)


def test_without_names_there_are_numbers():
    assert cigl.data.open("mnist1d").class_names == tuple("0123456789")
    source = cigl.data.from_tensors(*TWO, *TWO)
    assert (source.class_names, source.preprocessing) == (("0", "1"), None)


def test_data_of_ones_own():
    preprocessing = cigl.Preprocessing(4, [0.5] * 3, [0.25] * 3)
    source = cigl.data.from_tensors(*TWO, *TWO, class_names=["no", "yes", "never seen"], preprocessing=preprocessing)
    assert (source.classes, source.class_names[2], source.preprocessing) == (3, "never seen", preprocessing)
    with pytest.raises(CiglError, match="2 classes, but 1 names"):
        cigl.data.from_tensors(*TWO, *TWO, class_names=["no"])
