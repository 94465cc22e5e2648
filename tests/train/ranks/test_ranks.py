"""Two ranks with gloo: one run, the same as one process would have trained."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from processes import end, start
from ranks_worker import DROPOUT, LONG, NORM, SMALL
from test_run import outcome

from cigl.common import tensors
from cigl.train.folder.run_folder import RunFolder
from cigl.train.ranks.group import Ranks
from cigl.train.run import train
from cigl.train.signals import Stopped
from cigl.train.trainer import Splits, Trainer

WORKER = Path(__file__).parent / "ranks_worker.py"
SCENARIOS = ["long", "mixup", "holdout", "pilot", "norm", "dropout", "more_ranks", "predictions", "few", "refusals"]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Everything that two ranks do, in one start of the two."""
    folder = tmp_path_factory.mktemp("ranks")
    stopped_early(SMALL, folder / "more_ranks", 5)
    codes, _, errors = end(start(2, WORKER, folder, *SCENARIOS))
    assert codes == [0, 0], errors
    return folder


def stopped_early(config, out, steps):
    def stop(trainer, row):
        if trainer.step == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(config, out, progress=stop)


def found(folder, name):
    """What both ranks returned."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


def model(path):
    return tensors.load(path / "model.safetensors")


def assert_same_run(one, several, rtol=1e-4):
    """The same masks and, within float error, the same weights and metrics."""
    theirs = model(several)
    for name, mine in model(one).items():
        assert torch.equal(mine != 0, theirs[name] != 0), name
        torch.testing.assert_close(theirs[name], mine, rtol=rtol, atol=1e-5)
    for here, there in zip(RunFolder(one).read_metrics(), RunFolder(several).read_metrics(), strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=rtol)
        assert (there["step"], there["density"], there["lr"]) == (here["step"], here["density"], here["lr"])


def test_200_steps_are_those_of_one_process(together, tmp_path):
    train(LONG, tmp_path / "one")
    assert_same_run(tmp_path / "one", together / "long")
    results = found(together, "long")
    assert results[0] == results[1] == RunFolder(together / "long").read_json("result.json")
    assert results[0]["versions"]["ranks"] == "2"
    assert RunFolder(together / "long").read_json("versions.json")["ranks"] == "2"
    assert len(RunFolder(together / "long").read_metrics()) == LONG.epochs
    assert [path.name for path in (together / "long").glob(".*")] == []


@pytest.mark.parametrize("name", ["mixup", "holdout"])
def test_other_runs_are_those_of_one_process(name, together, tmp_path):
    changes = {"mixup": {"mixup": 0.3}, "holdout": {"temperature": "holdout"}}[name]
    result = train(SMALL.changed(**changes), tmp_path / "one")
    assert_same_run(tmp_path / "one", together / name)
    if name == "holdout":
        assert found(together, name)[1]["temperature"] == pytest.approx(result["temperature"], rel=1e-3)


def test_a_pilot_is_trained_by_all_ranks(together):
    first, second = found(together, "pilot")
    assert first["temperature"] == second["temperature"] > 0
    (pilot,) = (together / "pilots").iterdir()
    assert RunFolder(pilot).read_json("result.json")["versions"]["ranks"] == "2"


def test_batch_norm_statistics_are_the_means_of_what_the_ranks_saw(together):
    first, second = found(together, "norm")
    assert first["trained"] == second["trained"]
    assert first["whole"] == second["whole"]
    assert first["alone"] != second["alone"]  # each from its part of the batches
    mean = [(torch.tensor(a) + torch.tensor(b)) / 2 for a, b in zip(first["alone"], second["alone"], strict=True)]
    for expected, value in zip(mean, first["whole"], strict=True):
        torch.testing.assert_close(torch.tensor(value), expected)


def test_on_a_cpu_batch_norm_is_not_synchronised():
    trainer = Trainer(NORM, Splits.of(NORM))
    assert not any(isinstance(each, torch.nn.SyncBatchNorm) for each in trainer.model.modules())


def test_a_signal_to_one_rank_saves_and_stops_all_and_a_resumed_run_has_the_same_bits(together):
    """Also where dropout layers draw from a generator of each rank's own."""
    assert found(together, "dropout") == [{"code": 143, "generators": 2}] * 2
    assert outcome(together / "dropout") == outcome(together / "dropout-resumed")


def test_ranks_draw_their_own_numbers():
    states = []
    for rank in range(3):
        trainer = Trainer(DROPOUT, Splits.of(DROPOUT))
        trainer.ranks = Ranks(rank, 3)
        trainer.seed_generator()
        states.append(torch.get_rng_state())
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[1], states[2])
    torch.manual_seed(DROPOUT.seed)
    assert torch.equal(states[0], torch.get_rng_state())  # rank 0 is what one process was


def test_a_run_of_one_process_is_resumed_by_two(together, tmp_path):
    train(SMALL, tmp_path / "one")
    assert_same_run(tmp_path / "one", together / "more_ranks")
    for messages in found(together, "more_ranks"):
        assert any("saved with 1 rank and is resumed with 2" in message for message in messages)


def test_evaluation_counts_every_sample_once_and_in_order(together):
    config = SMALL.changed(train_size=257, validation=0.2)
    trainer = Trainer(config, Splits.of(config))
    logits, labels = trainer.predict(trainer.model.eval(), "validation")
    assert found(together, "predictions") == [len(labels)] * 2
    for rank in (0, 1):
        theirs = torch.load(together / f"predictions-{rank}.pt")
        assert torch.equal(theirs[1], labels)
        torch.testing.assert_close(theirs[0], logits, rtol=1e-5, atol=1e-6)


def test_a_split_may_have_fewer_samples_than_there_are_ranks(together):
    assert found(together, "few") == [1, 1]


def test_bad_input_is_the_same_sentence_on_every_rank(together):
    first, second = found(together, "refusals")
    assert first == second | {"folder": first["folder"]}  # where each has a folder of another name
    assert "seed is 0 on rank 0 and 1 on rank 1" in first["seeds"]
    assert "batch_size is 65, which 2 ranks can't divide into equal parts: take 64 or 66" in first["batch"]
    assert "did you mean 'mnist1d'" in first["dataset"]
    assert "the checksum of the training labels is" in first["data"]
    assert "rank 1 can't see" in first["folder"]
    assert "all nodes share" in first["folder"]
    assert "another process is training in" in first["busy"]
    assert "already holds a run" in first["started"]
    assert "a run of another configuration" in first["other"]
    assert first["type"] == "Busy"
    assert "the loss is nan" in first["nan"] or "the loss is inf" in first["nan"]
    assert not (together / "bad").exists()
