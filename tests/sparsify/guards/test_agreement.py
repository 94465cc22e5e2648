"""Processes whose masks drift apart are named; those that have nothing to do with each other are left in peace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import attach, mlp, run, sgd

WORKER = Path(__file__).parents[1] / "agreement_worker.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the two processes have seen, each."""
    folder = tmp_path_factory.mktemp("agreement")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    workers = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), str(folder)], env=environment, stderr=-1)
        for rank in range(2)
    ]
    try:
        errors = [worker.communicate(timeout=400)[1].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()  # nothing happens to one that has ended
    assert [worker.returncode for worker in workers] == [0, 0], errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_masks_that_grew_apart_are_named_after_the_first_round(results):
    steps = [result["grown apart"][0] for result in results]
    assert min(steps) == 5  # the round of step 4 was the first
    assert max(steps) <= 6
    for result in results:
        assert "hold different masks of 0.weight" in result["grown apart"][1]
        assert "wrap the model in DistributedDataParallel" in result["grown apart"][1]


def test_other_seeds_are_named_before_the_first_step(results):
    assert min(result["other seeds"][0] for result in results) == 1
    assert "apply the same gradients, but hold different masks" in results[0]["other seeds"][1]


def test_the_same_masks_and_two_models_are_no_error(results):
    for result in results:
        assert result["the same"] == [None, ""]
        assert result["two models"] == [None, ""]


def test_one_process_may_train_alone(results):
    assert results[0]["alone"] == 7


def test_a_skipped_step_is_named_with_the_results(results):
    said = [message for result in results for message in result["skipped"] if "processes" in message]
    assert len(said) == 1
    assert "processes 1 and 0" in said[0] or "processes 0 and 1" in said[0]
    assert "the same masks after" in said[0]


def test_finalize_under_ddp_of_a_model_that_holds_its_sparsifier(results):
    assert [result["finalized"] for result in results] == ["Sequential"] * 2


def test_join_with_uneven_inputs_is_refused_where_masks_follow_the_steps(results):
    for result in results:
        assert "DistributedDataParallel.join() lets processes take different numbers of steps" in result["join rigl"]
    assert [result["join static"] for result in results] == [[5, True], [8, True]]


def test_under_ddp_differences_are_named_with_their_ranks(results):
    for result in results:
        assert "(ranks 0 and 1) hold different masks of 0.weight" in result["ddp seed"]
        assert "(ranks 0 and 1) made different layers sparse" in result["ddp layers"]


def test_without_other_processes_nothing_is_compared():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "rigl")
    run(model, optimizer, 4)
    assert not torch.distributed.is_initialized()
    assert sparse._agreement._mine is None
