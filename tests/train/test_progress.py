"""What a person sees while a run goes, at every width."""

import io
import sys

import pytest
from rich.console import Console

from cigl.common.phases import watching
from cigl.train.config import Config
from cigl.train.progress import Display, RunningMean, progress_bar
from cigl.train.run import train

SMALL = {"train_size": 320, "epochs": 2, "update_every": 4, "average_of": "p*W"}


def drawn(display, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(display)
    return console.file.getvalue().strip()


def test_a_run_is_shown_from_its_first_steps_on(tmp_path):
    """Every phase has a name, and the loss is there before the first epoch ends."""
    display, lines, phases = Display(), [], []

    def watch(now):
        display.enter(now)
        phases.append(now[-1] if now else "")

    def show(trainer, row):
        display.show(trainer, row)
        lines.append(drawn(display))

    with watching(watch):
        train(Config(**SMALL, temperature="holdout"), tmp_path / "a", progress=show)
    assert "epoch 1/2  step 2/4  loss 2." in lines[1]
    assert "examples/s" in lines[1]
    assert lines[1].endswith("left")
    assert list(dict.fromkeys(filter(None, phases))) == [
        "opening mnist1d",
        "building the model",
        "reading the checkpoint",
        "evaluating on the validation data",
        "saving a checkpoint",
        "averaging the weights",
        "fitting the temperature",
        "evaluating on the test data",
        "computing confidence intervals",
    ]
    assert drawn(display).endswith("starting")  # nothing claims to train when it has ended


def test_a_phase_within_training_stands_beside_the_bar_and_else_alone():
    display = Display()
    display.enter(("pilot run", "opening mnist1d"))
    assert drawn(display).endswith("pilot run: opening mnist1d")


def test_without_a_terminal_there_is_a_line_per_epoch(tmp_path, capsys):
    with progress_bar() as progress:
        train(Config(**SMALL, validation=0.2), tmp_path / "a", progress=progress)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("cigl 80 % mlp on mnist1d, epoch 1/2: loss 2.")
    assert "validation accuracy" in second
    assert "%" in second


def test_on_a_terminal_the_title_comes_first_and_the_line_goes(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(title="training mlp"):
        pass
    written = terminal.getvalue()
    assert written.startswith("training mlp\n")
    assert "starting" in written
    assert written.endswith("\x1b[2K")  # the line is erased


def test_quiet_is_quiet(capsys):
    with progress_bar(quiet=True, title="training") as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_a_running_mean_follows():
    mean = RunningMean(length=10)
    for _ in range(200):
        mean.add(1.0)
    for _ in range(200):
        mean.add(3.0)
    assert mean.value == pytest.approx(3.0, abs=1e-6)
