"""FSDP2: any number of processes comes to the same masks, and to the same weights up to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
ALWAYS = ["after", "before", "adamw", "accumulate", "no_sync", "clip", "sup-tickets"]
RARELY = ["keep", "free", "set", "gmp"]


def launch(scenarios: list[str], ranks: int, folder: Path) -> None:
    """The scenarios one after the other, in ``ranks`` processes that meet once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [
        [sys.executable, str(HERE / "fsdp_worker.py"), ",".join(scenarios), str(rank), str(ranks), str(folder)]
        for rank in range(ranks)
    ]
    workers = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for command in commands
    ]
    try:
        errors = [worker.communicate(timeout=600)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()  # nothing happens to one that has ended
    assert [worker.returncode for worker in workers] == [0] * ranks, "\n".join(e[-2000:] for e in errors)


def agree(one: dict[str, Tensor], other: dict[str, Tensor], bits: bool = False) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if bits:
            assert torch.equal(value, other[name]), name
        else:
            torch.testing.assert_close(value, other[name], rtol=1e-12, atol=1e-13, msg=name)


def compare(folder: Path, one: str, other: str) -> None:
    a, b = (torch.load(folder / f"{name}.pt", weights_only=True) for name in (one, other))
    agree(a["masks"], b["masks"], bits=True)
    for part in ("weights", "final", *(["ema"] if "ema" in a else [])):
        agree(a[part], b[part])
    assert (a["density"], a["explored"], a["summary"]) == (b["density"], b["explored"], b["summary"])
    assert a["explored"] > a["density"] or "gmp" in one  # rounds did move weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def alone(folder):
    launch([*ALWAYS, "hybrid", "save"], 1, folder)


@pytest.fixture(scope="module")
def two(folder):
    launch([*ALWAYS, "what_a_forward_sees", "memory", "batch_norm", "refusals"], 2, folder)


@pytest.fixture(scope="module")
def four(folder):
    launch(["after", "hybrid", "save", "hybrid_seeds"], 4, folder)


@pytest.mark.parametrize("scenario", ALWAYS)
def test_two_processes_train_as_one_does(scenario, folder, alone, two):
    compare(folder, f"{scenario}-1", f"{scenario}-2")


@pytest.mark.parametrize("scenario", ["after", "hybrid"])
def test_four_processes_train_as_one_does(scenario, folder, alone, four):
    """The convolution has three rows: one process holds nothing of it."""
    compare(folder, f"{scenario}-1", f"{scenario}-4")


@pytest.mark.parametrize("ranks", [2, 1])
def test_a_checkpoint_of_four_processes_is_loaded_by_fewer(ranks, folder, alone, four):
    launch(["load-4"], ranks, folder)
    compare(folder, "saved-1", f"loaded-4-{ranks}")


SENTENCES = {
    "seeds": "the processes 0 and 1, which train one sharded model, have been given different options or seeds",
    "columns": "0.weight is sharded as (S(1)): supported are fully_shard along dimension 0 and hybrid sharding",
    "partly": "1.weight is not sharded, but others are, so its masks would differ between the processes",
    "partly_afterwards": "1.weight is not sharded, but others are, so its masks would differ between the processes",
    "saved": "the model is sharded: take a whole one, sparse.finalize(whole=True).",
    "tensor_parallel": "0.weight is sharded as (S(0)), and not by fully_shard: supported are",
    "unknown_optimizer": "Own is not one of torch's optimizers, and with sharded parameters",
    "kernels": "kernels='sparse' is not possible: the parameters are sharded",
    "another_model": "the saved state is of another run: layer '0.weight' is (3, 2, 3, 3) there and (8, 8) here",
    "not_finite": "the dense gradient of 3.weight has NaN or Inf in step 8",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_every_process_refuses_in_the_same_words(case, folder, two):
    found = [json.loads((folder / f"refusals-{rank}.json").read_text())[case] for rank in range(2)]
    assert found[0] == found[1]
    assert found[0].startswith(SENTENCES[case])


def test_copies_of_a_hybrid_sharding_are_compared(folder, four):
    """Every process refuses, those too that differ from nobody in their own part."""
    for rank in range(4):
        found = json.loads((folder / f"hybrid_seeds-{rank}.json").read_text())
        assert found.startswith("the processes 0 and 3, which train one sharded model, have been given different")


@pytest.mark.slow
def test_two_hundred_steps_of_one_two_and_four_processes(folder):
    for ranks in (1, 2, 4):
        launch(["long", *RARELY], ranks, folder)
    for scenario in ("long", *RARELY):
        for ranks in (2, 4):
            compare(folder, f"{scenario}-1", f"{scenario}-{ranks}")
