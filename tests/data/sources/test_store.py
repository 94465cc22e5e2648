"""What is stored is what is loaded, or an error says so."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import labels, pixels

from cigl.common.errors import CiglError
from cigl.data.sources import store
from cigl.data.sources.formats import Arrays

ARRAYS = Arrays(pixels(6, 3, 5, 4), labels(6, 3), pixels(2, 3, 5, 4, seed=1), labels(2, 2))


def test_round_trip(tmp_path):
    assert not store.exists(tmp_path / "x")
    store.save(tmp_path / "x", ARRAYS, "here")
    assert store.exists(tmp_path / "x")
    for mine, theirs in zip(ARRAYS, store.load(tmp_path / "x", "x"), strict=True):
        assert np.array_equal(mine, theirs)
    assert len(list((tmp_path / "x").iterdir())) == 5  # nothing temporary is left


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    store.save(folder, ARRAYS, "here")
    return folder


@settings(max_examples=60, deadline=None)
@given(field=st.sampled_from(Arrays._fields), place=st.integers(0, 10**6), change=st.integers(1, 255))
def test_any_changed_byte_is_noticed(stored, field, place, change):
    path = stored / f"{field}.npy"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[place % len(bad)] ^= change
    path.write_bytes(bad)
    with pytest.raises(CiglError, match=r"damaged .* run `cigl data get x`"):
        store.load(stored, "x")
    path.write_bytes(good)
    store.load(stored, "x")


@pytest.mark.parametrize("keep", [0, 50, 140])
def test_a_truncated_file(tmp_path, keep):
    store.save(tmp_path, ARRAYS, "here")
    path = tmp_path / "train_images.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CiglError, match="damaged"):
        store.load(tmp_path, "x")


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"sha256": {}}), json.dumps({"sha256": 3})])
def test_a_damaged_list(tmp_path, content):
    store.save(tmp_path, ARRAYS, "here")
    (tmp_path / store.LIST).write_text(content)
    with pytest.raises(CiglError, match="can't be read"):
        store.load(tmp_path, "x")


def test_objects_are_never_loaded(tmp_path):
    """An array of objects can only be stored by pickling: refused even where the checksum fits."""
    store.save(tmp_path, ARRAYS, "here")
    np.save(tmp_path / "train_labels.npy", np.array([print], dtype=object))
    sums = json.loads((tmp_path / store.LIST).read_text())
    sums["sha256"]["train_labels"] = hashlib.sha256((tmp_path / "train_labels.npy").read_bytes()).hexdigest()
    (tmp_path / store.LIST).write_text(json.dumps(sums))
    with pytest.raises(CiglError, match="can't be read"):
        store.load(tmp_path, "x")


def test_where(monkeypatch, tmp_path):
    assert store.root(tmp_path / "a") == tmp_path / "a"
    assert store.root() == tmp_path / "cache"
    monkeypatch.delenv("CIGL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.root() == tmp_path / ".cache" / "cigl"
    assert store.root("~/d") == tmp_path / "d"
