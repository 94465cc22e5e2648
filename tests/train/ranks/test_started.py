"""What torchrun says in the environment, and what it must not say."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cigl import CiglError
from cigl.cli import app
from cigl.train.ranks.started import Started, started


def test_without_torchrun_a_process_is_the_only_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    assert started() == Started(0, 1, 0, False)


def test_with_torchrun(monkeypatch):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("TORCHELASTIC_MAX_RESTARTS", "2")):
        monkeypatch.setenv(name, value)
    assert started() == Started(3, 4, 1, True)


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "a", "WORLD_SIZE": "2"},
    ],
)
def test_half_of_an_environment_is_refused(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CiglError, match="torchrun"):
        started()


@pytest.mark.parametrize("command", [["evaluate", "a"], ["export", "a", "b"], ["study", "list"], ["methods"]])
def test_other_commands_do_not_run_in_several_processes(command, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "run this command without torchrun" in result.output


def test_restarts_need_a_folder(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    result = CliRunner().invoke(app, ["train"])
    assert result.exit_code == 2
    assert "with --max-restarts give --out too" in result.output


def test_a_missing_rendezvous_is_one_sentence(tmp_path):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", "cigl", "train", "--out", str(tmp_path / "a")]
    environment = {k: v for k, v in os.environ.items() if k != "MASTER_ADDR"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 2
    assert "could not meet the others at (MASTER_ADDR is not set)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


ENDING = """
import atexit, sys
from cigl.train.ranks.started import exits_without_teardown

class Late:
    def __del__(self):
        print("taken down", flush=True)

late = Late()
with exits_without_teardown():
    atexit.register(print, "a tracker's farewell")
    print("worked", end="\\n", flush=False)
    {end}
"""


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 1)])
@pytest.mark.parametrize("size", ["1", "2"])
def test_one_of_several_processes_ends_without_taking_the_interpreter_down(end, code, size):
    """torch's threads would abort it now and then; what others do at exit is done."""
    script = ENDING.format(end=end)
    environment = os.environ | {"WORLD_SIZE": size}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    ended = ["taken down"] if size == "1" else []
    assert done.stdout.split("\n")[:-1] == ["worked", "a tracker's farewell", *ended]
    assert ("ZeroDivisionError" in done.stderr, "no\n" in done.stderr) == (end == "1 / 0", end == "sys.exit('no')")
