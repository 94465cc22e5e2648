"""The command line as a person and as a script use it."""

import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import cigl
from cigl.cli import app
from cigl.train.config import KEYS

runner = CliRunner()
QUICK = ["--train-size", "320", "--epochs", "2", "--update-every", "4", "--quiet"]


def test_help_does_not_wait_for_torch():
    code = """
import sys
sys.argv = ["cigl", "--help"]
import cigl.cli
try:
    cigl.cli.app()
finally:
    print("torch" in sys.modules, "numpy" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.rstrip().endswith("False False")


def commands(of, path=()):
    """The names of every command and of every group of commands."""
    yield path
    for name, each in getattr(of, "commands", {}).items():
        yield from commands(each, (*path, name))


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_every_command_has_help_in_our_words_with_an_example(command):
    result = runner.invoke(app, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    if "Commands:" in result.output:
        assert not [line for line in result.output.splitlines() if line.endswith("...") and "Usage" not in line]
    else:
        assert re.search(f"Examples?:\n    cigl {' '.join(command)}", result.output)
        assert "\nOutput:\n" in result.output
        assert not re.search(r"range>|\[default|\[required|list\[|[{}]", result.output)


def test_every_key_is_a_flag():
    shown = runner.invoke(app, ["train", "--help"], terminal_width=200).output
    for key in KEYS:
        flag = "--option NAME=VALUE" if key == "options" else f"--{key.replace('_', '-')}"
        assert flag in shown


def test_train_evaluate_and_resume(tmp_path):
    run = tmp_path / "a"
    result = runner.invoke(app, ["train", "--out", str(run), *QUICK])
    assert result.exit_code == 0, result.output
    assert "calibration (ECE)" in result.output
    assert "ece_classwise_15" not in result.output
    assert f"the run is in {run}" in result.output
    every = runner.invoke(app, ["evaluate", str(run), "--all"]).output
    assert "ece_classwise_15" in every
    assert "--all" not in every
    result = runner.invoke(app, ["evaluate", str(run)])
    assert result.exit_code == 0, result.output
    assert [line.split("  ")[0] for line in result.output.splitlines()[5:9]] == [
        "accuracy", "log loss (NLL)", "Brier score", "calibration (ECE)",
    ]  # fmt: skip
    assert (run / "evaluation-test.svg").read_text().lstrip().startswith("<?xml")
    assert json.loads((run / "evaluation-test.json").read_text())
    plain = json.loads(runner.invoke(app, ["evaluate", str(run), "--json"]).stdout)
    assert plain["n"] == 10_000
    again = runner.invoke(app, ["train", "--resume", str(run), "--json"])
    assert json.loads(again.stdout)["folder"] == str(run)


def test_options_of_a_method(tmp_path):
    run = tmp_path / "a"
    options = ["--option", "c=0.25", "--option", "eps=2"]
    result = runner.invoke(app, ["train", "--method", "dst-ee", *options, "--out", str(run), *QUICK, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["config"]["options"] == {"c": 0.25, "eps": 2}
    assert runner.invoke(app, ["train", "--resume", str(run), "--json"]).exit_code == 0


def test_lists_are_the_librarys():
    assert json.loads(runner.invoke(app, ["methods", "--json"]).output) == cigl.methods()
    assert json.loads(runner.invoke(app, ["models", "--json"]).output) == cigl.models.names()
    found = json.loads(runner.invoke(app, ["data", "list", "--json"]).output)
    assert {name: each["about"] for name, each in found.items()} == cigl.data.names()
    assert "rigl " in runner.invoke(app, ["methods"]).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--method", "cigll"], "did you mean 'cigl'"),
        (["train", "--sparsity", "1.5"], "sparsity is 1.5"),
        (["train", "--preset", "cifar"], "unknown preset"),
        (["train", "--config", "none.yaml"], "there is no file none.yaml: give a YAML file"),
        (["train", "--resume", "none"], "is not a run folder"),
        (["train", "--resume", "none", "--seed", "1"], "give no other options"),
        (["train", "--milestones", "a,b"], "give numbers such as"),
        (["train", "--option", "cycle_drop"], "give NAME=VALUE"),
        (["train", "--method", "sup-tickets", "--option", "cycle_drp=1"], "did you mean 'cycle_drop'"),
        (["train", "--dataset", "nowhere:data"], "nowhere can't be imported"),
        (["evaluate", "none"], "is not a run folder"),
        (["data", "get", "mnist2d"], "mnist"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("error: ")
    assert len(result.output.strip().splitlines()) == 1


def test_runs_are_numbered_where_no_folder_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in ("001", "002"):
        result = runner.invoke(app, ["train", *QUICK])
        assert result.exit_code == 0, result.output
        assert (tmp_path / "runs" / number / "result.json").exists()
