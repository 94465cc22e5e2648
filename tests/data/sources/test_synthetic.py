"""MNIST-1D is made here, the same for everyone, and leaves no trace."""

import builtins
import random

import numpy as np
import pytest
import torch

import cigl.data
from cigl.common.errors import CiglError
from cigl.data.sources import synthetic


def test_made_here_and_without_a_trace(monkeypatch, tmp_path):
    synthetic.mnist1d.cache_clear()
    monkeypatch.setattr("requests.get", lambda *a, **k: pytest.fail("downloaded"))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    source = cigl.data.open("mnist1d", tmp_path)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (source.shape, source.classes, len(source.train), len(source.test)) == ((40,), 10, 4_000, 10_000)
    assert torch.bincount(source.train.labels).tolist() == [395, 388, 407, 407, 392, 417, 420, 401, 356, 417]
    x = torch.cat([x for x, _ in source.test.batches(1000)])
    assert x.mean().abs() < 0.01
    assert (x.std() - 1).abs() < 0.01
    assert torch.equal(next(source.train.batches(9, augment=True))[0], next(source.train.batches(9))[0])


def test_kept_on_disk_and_made_again_when_damaged(tmp_path, monkeypatch):
    made = []

    def make(seed):
        made.append(seed)
        rng = np.random.default_rng(seed)
        return {
            name: rng.random(shape, np.float32) if name[0] == "x" else rng.integers(0, 10, shape)
            for name, shape in zip(synthetic._NAMES, synthetic._SHAPES, strict=True)
        }

    def first():
        synthetic.mnist1d.cache_clear()
        return next(synthetic.mnist1d(3, tmp_path / "deep").train.batches(5))[0]

    monkeypatch.setattr(synthetic, "_make", make)
    x = first()
    assert torch.equal(first(), x)
    assert made == [3]
    kept = tmp_path / "deep" / "mnist1d-3.npz"
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 255
    for damaged in (content, b"", content[:50]):
        kept.write_bytes(damaged)
        assert torch.equal(first(), x)
    assert made == [3] * 4
    blocked = tmp_path / "file"
    blocked.write_text("")
    synthetic.mnist1d.cache_clear()
    assert len(synthetic.mnist1d(3, blocked / "below").train) == 4_000  # nowhere to keep it: made all the same
    synthetic.mnist1d.cache_clear()


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    synthetic.mnist1d.cache_clear()
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("mnist1d"):
            raise ModuleNotFoundError(name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CiglError, match=r"pip install 'cigl\[data\]'"):
        synthetic.mnist1d(0, tmp_path)
