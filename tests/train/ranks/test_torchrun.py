"""`torchrun -m cigl train` from the shell: kills, restarts, time-outs, and one sentence from all ranks together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_run import outcome

from cigl.train.folder.run_folder import RunFolder

pytestmark = pytest.mark.slow
OPTIONS = [
    "--model",
    "mlp-20",
    "--train-size",
    "640",
    "--epochs",
    "60",
    "--update-every",
    "50",
    "--method",
    "rigl",
    "--quiet",
]


def torchrun(ranks, *arguments, restarts=0, folder=None):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(restarts), "-m", "cigl", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder)


def errors_of(process):
    """The lines that cigl wrote; torchrun's own report comes after them."""
    _, errors = process.communicate(timeout=900)
    return [line for line in errors.splitlines() if line.startswith(("error:", "warning:", "stopped"))]


def rank_of(launcher, rank):
    """The process of a rank, by the environment that torchrun gave it (Linux)."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher.pid and f"RANK={rank}".encode() in (place / "environ").read_bytes().split(b"\0"):
                return int(place.name)
        except OSError:
            continue
    return None


def until_epoch(run, epoch):
    end = time.monotonic() + 600
    while len(RunFolder(run).read_metrics()) < epoch:
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def signal_rank(launcher, run, rank, number=signal.SIGKILL, epoch=5):
    until_epoch(run, epoch)
    os.kill(rank_of(launcher, rank), number)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_kill_9_of_a_rank_ends_the_others_with_one_sentence(victim, tmp_path):
    run = tmp_path / "run"
    launcher = torchrun(4, "train", "--out", run, *OPTIONS, "--epochs", "1000")
    signal_rank(launcher, run, victim)
    (said,) = errors_of(launcher)
    assert f"rank {victim} of 4 no longer answers" in said
    assert launcher.returncode != 0
    assert any((run / "checkpoints").glob("*.safetensors"))


def test_a_rank_that_hangs_is_given_up_after_the_time_out(tmp_path):
    run = tmp_path / "run"
    launcher = torchrun(2, "train", "--out", run, *OPTIONS, "--epochs", "1000", "--timeout-minutes", "0.1")
    signal_rank(launcher, run, 1, signal.SIGSTOP)
    (said,) = errors_of(launcher)
    assert "rank 1 of 2 no longer answers" in said
    assert launcher.returncode != 0


def test_an_elastic_restart_has_the_bits_of_a_run_that_was_never_interrupted(tmp_path):
    """Four ranks, where the order of sums matters."""
    whole = torchrun(4, "train", "--out", tmp_path / "whole", *OPTIONS)
    assert errors_of(whole) == []
    part = torchrun(4, "train", "--out", tmp_path / "part", *OPTIONS, restarts=2)
    signal_rank(part, tmp_path / "part", 2, epoch=20)
    (said,) = errors_of(part)
    assert "rank 2 of 4 no longer answers" in said
    assert part.returncode == 0
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "part")


def test_a_run_of_four_is_resumed_by_two_and_by_one(tmp_path):
    run = tmp_path / "run"
    launcher = torchrun(4, "train", "--out", run, *OPTIONS)
    until_epoch(run, 10)
    launcher.send_signal(signal.SIGTERM)
    assert errors_of(launcher) == [
        f"stopped by SIGTERM; what was trained is saved, resume it with: cigl train --resume {run}"
    ]
    launcher = torchrun(2, "train", "--resume", run)
    until_epoch(run, 30)
    launcher.send_signal(signal.SIGTERM)
    said = errors_of(launcher)
    assert "saved with 4 ranks and is resumed with 2" in said[0]
    one = torchrun(1, "train", "--resume", run)
    assert "saved with 2 ranks and is resumed with 1" in errors_of(one)[0]
    assert one.returncode == 0
    assert [row["epoch"] for row in RunFolder(run).read_metrics()] == list(range(1, 61))


OWN = """
import os
from torch import nn

class Fails(nn.Sequential):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 20 and os.environ["RANK"] == "1":
            raise ValueError("this model fails on rank 1")
        return super().forward(x)

def fails(classes):
    return Fails(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, classes))

class Unused(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.used, self.unused = nn.Linear(40, classes), nn.Linear(40, classes)
    def forward(self, x):
        return self.used(x)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--batch-size", "63"], "2 ranks can't divide into equal parts: take 62 or 64"),
        (["train", "--dataset", "minst"], "did you mean 'mnist'"),
        (["train", "--model", "own:fails"], "rank 1: ValueError: this model fails on rank 1"),
        (["train", "--model", "own:Unused"], "the model has parameters that its output doesn't depend on"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["evaluate", "nowhere"], "run this command without torchrun"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    more = ["--method", "rigl", "--quiet"] if arguments[0] == "train" and "--resume" not in arguments else []
    launcher = torchrun(2, *arguments, *more, folder=tmp_path)
    (said,) = errors_of(launcher)
    assert message in said
    assert launcher.returncode != 0
