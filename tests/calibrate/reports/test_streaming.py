import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import world

from cigl import CiglError, CiglWarning
from cigl.calibrate import Streaming, report


@pytest.mark.parametrize("classes", [2, 8, 1000])
@pytest.mark.parametrize("bins", [10, 15])
def test_equals_the_report(classes, bins):
    logits, labels = world(500, 1.4, classes)
    whole = report(logits=logits, labels=labels, bins=bins, resamples=5)
    stream = Streaming(classes, bins=bins, top5=classes > 5, classwise=True)
    for part, own in zip(logits.split(33), labels.split(33), strict=True):
        stream.update(logits=part, labels=own)
    shown = stream.compute()
    assert stream.n == 500
    for name, value in shown.items():
        assert value == pytest.approx(whole.metrics[name], abs=1e-12), name
    by_probability = Streaming(classes, bins=bins)
    by_probability.update(probabilities=logits.softmax(1), labels=labels)
    assert by_probability.compute()["nll"] == pytest.approx(shown["nll"], abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 3))
def test_merged_shards_equal_one_pass(sizes, seed):
    logits, labels = world(sum(sizes), 1.3, 6, seed=seed)
    one = Streaming(6, top5=True, classwise=True)
    one.update(logits=logits, labels=labels)
    merged = Streaming(6, top5=True, classwise=True)
    for part, own in zip(logits.split(sizes), labels.split(sizes), strict=True):
        shard = Streaming(6, top5=True, classwise=True)
        shard.update(logits=part, labels=own)
        merged.merge(shard)
    assert torch.equal(merged._sums[:30], one._sums[:30])  # counts and hits
    assert torch.allclose(merged._sums, one._sums, rtol=1e-12, atol=1e-12)
    assert merged.compute() == pytest.approx(one.compute(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_and_single_rows(dtype):
    logits, labels = world(40, classes=3)
    logits = logits.to(dtype)
    whole = report(logits=logits, labels=labels, resamples=5)
    stream = Streaming(3)
    for row in range(40):
        stream.update(logits=logits[row : row + 1], labels=labels[row : row + 1])
    for name in ("accuracy", "nll", "brier", "gap"):
        assert stream.compute()[name] == pytest.approx(whole.metrics[name], abs=1e-5)


def test_the_size_is_constant_and_input_is_left_alone():
    stream = Streaming(5)
    size = stream._sums.numel()
    for seed in range(5):
        logits, labels = world(1000, seed=seed)
        kept = logits.clone()
        stream.update(logits=logits, labels=labels)
        assert torch.equal(logits, kept)
        p = logits.softmax(1)
        stream.update(probabilities=p, labels=labels)
        assert torch.equal(p, logits.softmax(1))
    assert stream._sums.numel() == size == 5 * 15


def test_a_bad_batch_changes_nothing():
    stream = Streaming(3)
    logits, labels = world(200_000, classes=3)
    stream.update(logits=logits[:10], labels=labels[:10])
    before = stream.compute()
    logits[-1, 0] = torch.nan
    with pytest.raises(CiglError, match="logits have NaN"):
        stream.update(logits=logits, labels=labels)
    with pytest.raises(CiglError, match="sums to"):
        stream.update(probabilities=torch.ones(2, 3), labels=[0, 1])
    with pytest.raises(CiglError, match="the batch has 4 classes, the accumulator 3"):
        stream.update(logits=torch.zeros(1, 4), labels=[0])
    assert stream.compute() == before


def test_refusals():
    with pytest.raises(CiglError, match="no samples yet"):
        Streaming(3).compute()
    with pytest.raises(CiglError, match="make them alike"):
        Streaming(3).merge(Streaming(3, bins=10))
    with pytest.raises(CiglError, match="always right"):
        Streaming(5, top5=True)
    with pytest.raises(CiglError, match="at least 2 bins"):
        Streaming(5, bins=1)


def _process(rank: int, port: int, results) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    logits, labels = world(300, classes=4)
    stream = Streaming(4)
    stream.update(logits=logits[rank::2], labels=labels[rank::2])
    stream.reduce()
    results[rank] = stream.compute()
    dist.destroy_process_group()


def test_under_torch_distributed():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").Manager().dict()
    mp.spawn(_process, (port, results), nprocs=2)
    logits, labels = world(300, classes=4)
    one = Streaming(4)
    one.update(logits=logits, labels=labels)
    assert results[0] == results[1] == pytest.approx(one.compute(), abs=1e-12)


def test_small_batches_are_gathered_and_nothing_is_lost():
    logits, labels = world(5000, 1.3, 7)
    one, many = Streaming(7, top5=True, classwise=True), Streaming(7, top5=True, classwise=True)
    one.update(logits=logits, labels=labels)
    for start in range(0, 5000, 100):
        batch = logits[start : start + 100].clone()
        many.update(logits=batch, labels=labels[start : start + 100])
        assert many.n == start + 100
        batch.zero_()  # the caller's memory is the caller's
    assert many.compute() == pytest.approx(one.compute(), abs=1e-12)
    many.update(probabilities=logits[:10].softmax(1).float(), labels=labels[:10])  # another kind, another dtype
    one.update(probabilities=logits[:10].softmax(1).float(), labels=labels[:10])
    assert many.n == one.n == 5010
    assert many.compute() == pytest.approx(one.compute(), abs=1e-12)


def test_probability_0_counts_as_in_the_report():
    p = torch.tensor([[1.0, 0.0], [1 - 1e-20, 1e-20], [0.5, 0.5]])
    with pytest.warns(CiglWarning, match="1 samples have probability 0") as caught:
        expected = report(probabilities=p, labels=[1, 1, 0], resamples=2)
    assert caught[0].filename == __file__
    stream = Streaming(2)
    with pytest.warns(CiglWarning, match="1 samples have probability 0") as caught:
        stream.update(probabilities=p, labels=[1, 1, 0])
    assert caught[0].filename == __file__
    assert stream.compute()["nll"] == pytest.approx(expected.nll, rel=1e-6)


def test_made_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        stream = Streaming(3)
        stream.update(logits=torch.zeros(2, 3), labels=[0, 1])
    stream.update(logits=torch.zeros(2, 3), labels=[0, 1])
    other = Streaming(3)
    with torch.inference_mode():
        other.update(logits=torch.zeros(2, 3), labels=[0, 1])
    stream.merge(other)
    assert (stream.n, stream.compute()["accuracy"]) == (6, 0.5)


def test_refusals_that_say_what_to_do():
    for classes in (1, -3, 4.0, True, "5"):
        with pytest.raises(CiglError, match="a whole number of at least 2"):
            Streaming(classes)
    with pytest.raises(CiglError, match="another Streaming, not int"):
        Streaming(3).merge(3)
    with pytest.raises(CiglError, match="init_process_group first"):
        Streaming(3).reduce()
    p = torch.full((5000, 2), 0.5)
    p[4999] = 0.7
    with pytest.raises(CiglError, match=r"row 4999 of the probabilities sums to 1\.4"):
        Streaming(2).update(probabilities=p, labels=torch.zeros(5000, dtype=torch.long))
