import contextlib
import errno
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from cigl import CiglError
from cigl.common import tensors

STATE = {
    "model": {"w": torch.randn(3, 4), "mask": torch.tensor([True, False]), "empty": torch.zeros(0, 2)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "b": torch.ones(2, dtype=torch.bfloat16)}},
                  "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "none": None, "text": "a", "numbers": [1, 2.5, True],
}  # fmt: skip


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b and type(a) is type(b)


def test_states_round_trip_with_their_types(tmp_path):
    tensors.save(tmp_path / "x.safetensors", STATE)
    assert same(tensors.load(tmp_path / "x.safetensors"), STATE)


def test_a_channels_last_tensor_and_a_shared_one(tmp_path):
    weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors.save(tmp_path / "x.safetensors", {"a": weight, "b": weight})
    loaded = tensors.load(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], weight)
    assert torch.equal(loaded["b"], weight)


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_any_flipped_byte_is_noticed(tmp_path_factory, place, flip):
    path = tmp_path_factory.mktemp("damage") / "x.safetensors"
    tensors.save(path, STATE)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= flip
    path.write_bytes(content)
    with contextlib.suppress(CiglError):  # or, in the padding between header and data, no harm is done
        assert same(tensors.load(path), STATE)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_files_are_noticed(size, tmp_path):
    path = tmp_path / "x.safetensors"
    tensors.save(path, STATE)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CiglError, match="damaged"):
        tensors.load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(CiglError, match="damaged or not a checkpoint"):
        tensors.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(call, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    tensors.save(path, {"a": torch.ones(2)})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(
        CiglError, match=r"can't be written \(No space left on device\); what was there before is intact"
    ):
        tensors.save(path, {"a": torch.zeros(2)})
    monkeypatch.undo()
    assert torch.equal(tensors.load(path)["a"], torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_only_plain_values_are_saved(tmp_path):
    with pytest.raises(CiglError, match="a set can't be saved"):
        tensors.save(tmp_path / "x.safetensors", {"a": {1, 2}})


def test_a_state_dict_is_what_safetensors_reads(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    tensors.save(tmp_path / "a", dict(model.state_dict()))
    found = load_file(tmp_path / "a")
    assert model.load_state_dict(found).missing_keys == []
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_paths_that_read_the_same_stay_apart(tmp_path):
    inner = {"b": torch.zeros(1), 0: torch.ones(1)}
    state = {"a": inner, "a.b": torch.ones(2), "a.0": torch.ones(3), "": torch.ones(4)}
    tensors.save(tmp_path / "a", state)
    found = tensors.load(tmp_path / "a")
    assert found.keys() == state.keys()
    assert [len(found[name]) for name in ("a.b", "a.0", "")] == [2, 3, 4]
    assert found["a"] == inner


def test_the_same_state_is_the_same_file(tmp_path):
    """safetensors itself writes its metadata in another order each time."""
    state = {"ä.weight": torch.arange(6.0).view(2, 3), "step": 3, "empty": torch.empty(0)}
    for number in range(20):
        tensors.save(tmp_path / f"{number}.safetensors", state)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert load_file(tmp_path / "0.safetensors")["ä.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_entries_in_the_metadata(tmp_path):
    path, entries = tmp_path / "x.safetensors", {"classes": ["ä", "b"], "temperature": None}
    tensors.save(path, STATE["model"], entries)
    state, found = tensors.load_with_entries(path)
    assert same(state, STATE["model"])
    assert found == entries
    tensors.save(tmp_path / "plain.safetensors", STATE["model"])
    assert tensors.load_with_entries(tmp_path / "plain.safetensors")[1] == {}
    damaged = path.read_bytes().replace(rb"\"b\"]", rb"\"c\"]")
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(CiglError, match="damaged"):
        tensors.load(path)
