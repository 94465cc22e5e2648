"""The container against the safetensors package, and against everything that can be wrong with a file."""

import json
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from cigl.common.errors import CiglError
from cigl.runtime.format import container

EVERY_TYPE = {
    name: torch.zeros(3, 2, dtype=torch.uint8).view(-1).repeat(2 * dtype.itemsize).view(dtype).clone()
    for name, dtype in container.DTYPES.items()
}


def tensors():
    return {
        "a.weight": torch.randn(5, 7),
        "half": torch.randn(3).half(),
        "count": torch.tensor(12345678901),
        "none": torch.empty(0, 4),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "flags": torch.tensor([True, False, True]),
        "größe ✓": torch.arange(3, dtype=torch.uint8),
    }


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and bytes(container._bytes(left)) == bytes(container._bytes(right))
    )


def parts(content):
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def forged(path, change):
    """The file at ``path`` with another header: changed in place, or what ``change`` returns."""
    header, body = parts(path.read_bytes())
    changed = change(header)
    header = header if changed is None else changed
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.cigl"
    container.write(path, tensors(), {"x": [1, "ü"]})
    return path


def test_there_and_back(saved):
    found, description = container.read(saved)
    assert description == {"x": [1, "ü"]}
    assert found.keys() == tensors().keys()
    assert same(found["odd"], tensors()["odd"])
    assert found["count"] == 12345678901
    assert found["none"].shape == (0, 4)


def test_every_type(tmp_path):
    container.write(tmp_path / "a.cigl", EVERY_TYPE, {})
    found, _ = container.read(tmp_path / "a.cigl")
    assert all(same(found[name], EVERY_TYPE[name]) for name in EVERY_TYPE)
    with safe_open(tmp_path / "a.cigl", "pt") as other:
        assert all(same(other.get_tensor(name), EVERY_TYPE[name]) for name in EVERY_TYPE)


def test_the_safetensors_package_reads_it(saved):
    with safe_open(saved, "pt") as other:
        assert set(other.keys()) == set(tensors())
        assert json.loads(other.metadata()["description"]) == {"x": [1, "ü"]}
        found, _ = container.read(saved)
        assert all(same(other.get_tensor(name), found[name]) for name in found)


def test_what_the_safetensors_package_writes_again_is_still_ours(saved, tmp_path):
    found, _ = container.read(saved)
    with safe_open(saved, "pt") as other:
        save_file(found, tmp_path / "b.cigl", other.metadata())
    again, _ = container.read(tmp_path / "b.cigl")
    assert all(same(again[name], found[name]) for name in found)


@settings(deadline=None)
@given(st.data())
def test_every_flipped_bit_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.cigl"
    container.write(path, {"w.gaps": torch.arange(9, dtype=torch.uint8), "w.values": torch.ones(9)}, {"x": [1.5, "ü"]})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
    if bytes(content) == path.read_bytes():
        return
    path.write_bytes(content)
    with pytest.raises(CiglError):
        container.read(path)


def test_a_flipped_bit_in_every_byte(tmp_path):
    path = tmp_path / "a.cigl"
    container.write(path, {"w": torch.ones(2)}, {})
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CiglError):
            container.read(path)


def test_every_truncation_and_extension(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        with pytest.raises(CiglError):
            container.read(saved)
    saved.write_bytes(content + b"\0")
    with pytest.raises(CiglError, match="bytes, but the file has"):
        container.read(saved)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.cigl"
    for head in (b"", struct.pack("<Q", len(content))):
        path.write_bytes(head + content)
        with pytest.raises(CiglError):
            container.read(path)


def _entry(name, **changes):
    return lambda header: header[name].update(changes)


def _metadata(**changes):
    return lambda header: header["__metadata__"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_metadata(version="2"), "version '2', and this cigl reads '1'"),
        (_metadata(format="pt"), "not one that cigl.save wrote"),
        (_metadata(sha256="0" * 64), "checksum"),
        (_metadata(description=5), "description is missing"),
        (_metadata(description='{"x": [1, "u"]}'), "checksum"),
        (lambda header: header.pop("__metadata__") and None, "not one that cigl.save wrote"),
        (_entry("half", shape=[10**12]), "half has 6 bytes, which do not match its shape"),
        (_entry("half", shape=[-3]), "entry of half"),
        (_entry("half", shape=[True, 3]), "entry of half"),
        (_entry("half", shape=[3.0]), "entry of half"),
        (_entry("half", shape=[2**31, 2**31, 2**31]), "entry of half"),
        (_entry("half", dtype="F128"), "entry of half"),
        (_entry("half", dtype=["F16"]), "damaged"),
        (_entry("half", dtype="BF16"), "checksum"),
        (_entry("half", data_offsets=[0, 6]), "begin where"),
        (_entry("half", data_offsets=[0]), "damaged"),
        (_entry("half", data_offsets=5), "damaged"),
        (lambda header: header.update(new={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}), "checksum"),
        (lambda header: header.pop("flags") and None, "begin where|bytes"),
        (lambda header: [1, 2], "not one that cigl.save wrote"),
        (lambda header: b"[" * 100_000, "damaged"),
        (lambda header: b'{"a":' * 100_000, "damaged"),
        (lambda header: b"\xff\xfe{}", "damaged"),
        (lambda header: b'{"a": 1' + b"0" * 5000 + b"}", "damaged"),
        (lambda header: b'{"a": NaN}', "NaN is in the place of a number"),
        (lambda header: b'{"a": 1, "a": 2}', "twice"),
        (lambda header: b"", "damaged"),
    ],
)
def test_hostile_headers(saved, change, message):
    forged(saved, change)
    with pytest.raises(CiglError, match=message):
        container.read(saved)


def test_a_header_longer_than_the_file_is_not_allocated(saved):
    for length in (2**63, 2**40, container.LONGEST_HEADER + 1, len(saved.read_bytes())):
        saved.write_bytes(struct.pack("<Q", length) + saved.read_bytes()[8:])
        with pytest.raises(CiglError, match="truncated or not a safetensors file"):
            container.read(saved)


def test_boolean_values_are_0_or_1(tmp_path):
    path = tmp_path / "a.cigl"
    wrong = torch.from_numpy(np.array([0, 1, 2], np.uint8)).view(torch.bool)
    container.write(path, {"flags": wrong}, {})
    with pytest.raises(CiglError, match="Boolean values"):
        container.read(path)


def test_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none.cigl", tmp_path / "pipe"):
        with pytest.raises(CiglError, match="is not a file"):
            container.read(path)


def test_a_write_that_fails_leaves_what_was_there(saved):
    before = saved.read_bytes()
    with pytest.raises(CiglError, match="plain data"):
        container.write(saved, tensors(), {"x": object()})
    assert saved.read_bytes() == before
    with pytest.raises(CiglError, match="can't be written"):
        container.write(saved.parent / "none" / "a.cigl", tensors(), {})
    assert [each.name for each in saved.parent.iterdir()] == ["a.cigl"]
