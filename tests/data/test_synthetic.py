"""MNIST-1D is made here, the same for everyone, and leaves no trace."""

import builtins
import importlib
import random

import numpy as np
import pytest
import torch
from mnist1d.data import get_dataset_args, make_dataset

import cigl.data
from cigl.data.synthetic import _interpolate, _quick_interpolation, mnist1d
from cigl.errors import CiglError


def test_made_here_and_without_a_trace(monkeypatch):
    mnist1d.cache_clear()
    monkeypatch.setattr("requests.get", lambda *a, **k: pytest.fail("downloaded"))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    source = cigl.data.open("mnist1d")
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (source.shape, source.classes, len(source.train), len(source.test)) == ((40,), 10, 4_000, 10_000)
    assert torch.bincount(source.train.labels).tolist() == [395, 388, 407, 407, 392, 417, 420, 401, 356, 417]
    x = torch.cat([x for x, _ in source.test.batches(1000)])
    assert x.mean().abs() < 0.01
    assert (x.std() - 1).abs() < 0.01
    assert torch.equal(next(source.train.batches(9, augment=True))[0], next(source.train.batches(9))[0])


def test_the_same_as_the_packages_own():
    settings = get_dataset_args()
    settings.num_samples = 200
    theirs = make_dataset(settings)
    with _quick_interpolation():
        mine = make_dataset(settings)
    assert importlib.import_module("mnist1d.transform").interpolate is not _interpolate
    for key in ("x", "x_test", "y", "t"):
        assert np.array_equal(mine[key], theirs[key])


def test_a_missing_package_is_named(monkeypatch):
    mnist1d.cache_clear()
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("mnist1d"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CiglError, match=r"pip install 'cigl\[data\]'"):
        mnist1d()
