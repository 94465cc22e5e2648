"""`cigl study` as a person types it: lists, clear refusals that leave nothing behind, exit codes."""

import json
from types import SimpleNamespace

import pytest
from quick import METHODS, quick, written
from typer.testing import CliRunner

from cigl.cli import app
from cigl.study.catalogue import names
from cigl.study.grid import cells
from cigl.study.store import StudyFolder

runner = CliRunner()


def test_list():
    assert json.loads(runner.invoke(app, ["study", "list", "--json"]).output) == names()
    assert "mask-correlation" in runner.invoke(app, ["study", "list"]).output


FILE = "FILE"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mian"], "unknown study 'mian': did you mean 'main'"),
        (["main", "--scale", "smal"], "unknown scale 'smal': did you mean 'small'"),
        ([FILE, "--scale", "small"], "leave --scale out"),
        (["none.yaml"], "there is no file none.yaml"),
        (["main", "--jobs", "0"], "invalid value for '--jobs': give at least 1"),
        (["main", "--ranks", "0"], "invalid value for '--ranks': give at least 1"),
        (["main", "--seeds", "0,1,1"], "repeat"),
        (["main", "--seeds", "few"], "--seeds is 'few'"),
        (["main", "--seeds", "0"], "is an empty grid"),
        (["main", "--only", "method=cigll"], "did you mean 'cigl'"),
        (["main", "--only", "sparsity=0.5"], "unknown sparsity in --only"),
        (["main", "--only", "methods=cigl"], "unknown axis in --only"),
        (["main", "--only", "method=rigl,cigll"], "did you mean 'cigl'"),
        (["main", "--set", "epochs=1", "--set", "epochs=2"], "--set has epochs more than once"),
        (["main", "--set", "sparsity=0.5"], "has sparsity: leave it out"),
        (["main", "--only", "cigl"], "--only has 'cigl': give axis=value"),
        (["main", "--set", "learning_rate=1"], "unknown key 'learning_rate'"),
        (["main", "--set", "epochs=many"], "epochs is 'many'"),
        (["main", "--set", "epochs=["], "--set has epochs=["),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, message, tmp_path):
    file = written(quick(), tmp_path / "mine.yaml")
    arguments = [str(file) if part is FILE else part for part in arguments]
    result = runner.invoke(app, ["study", "run", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.startswith("error: ")
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_study_file_with_an_unknown_key(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(written(quick(), file).read_text() + "\nseedz: 3\n")
    result = runner.invoke(app, ["study", "run", str(file), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "unknown key of a study 'seedz': did you mean 'seeds'" in result.output


def test_an_out_that_holds_another_study(tmp_path):
    StudyFolder(tmp_path).create(quick())
    result = runner.invoke(app, ["study", "run", "main", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds another study ('quick'" in result.output


def test_status_of_nothing(tmp_path):
    result = runner.invoke(app, ["study", "status", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no study" in result.output


def run_with(outcomes, monkeypatch, tmp_path, *more):
    """The command, with workers that finishes or fails runs at once."""
    from concurrent.futures import Future

    folder = StudyFolder(tmp_path / "out")

    def submit(order):
        future = Future()
        outcome = outcomes[order["config"]["method"]]
        future.set_result({"state": outcome, "message": "out of luck", "seconds": 1.0})
        if outcome == "done":
            (cell,) = (c for c in cells(folder.read()) if c.config.plain() == order["config"])
            run = folder.folder(cell)
            run.path.mkdir(parents=True)
            run.write_json("result.json", {"config": order["config"]})
        return future

    workers = SimpleNamespace(size=1, submit=submit, share=lambda order: 0.0, close=lambda: None)
    monkeypatch.setattr("cigl.study.local.LocalWorkers", lambda *given: workers)
    file = written(quick(methods=METHODS), tmp_path / "mine.yaml")
    return runner.invoke(app, ["study", "run", str(file), "--out", str(tmp_path / "out"), *more])


def test_all_done_is_exit_code_0(monkeypatch, tmp_path):
    result = run_with({"rigl": "done", "cigl": "done"}, monkeypatch, tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["done"] == 2
    shown = runner.invoke(app, ["study", "status", str(tmp_path / "out")]).output
    assert "2 of 2 runs done" in shown


def test_some_failed_is_exit_code_1(monkeypatch, tmp_path):
    result = run_with({"rigl": "failed", "cigl": "done"}, monkeypatch, tmp_path)
    assert result.exit_code == 1
    assert "rigl 50 % toy seed 0: failed: out of luck" in result.output


def test_only_seeds_and_keys_reach_the_runs(monkeypatch, tmp_path):
    arguments = ("--only", "method=cigl", "--seeds", "4,7", "--set", "lr=0.05", "--json")
    result = run_with({"cigl": "done"}, monkeypatch, tmp_path, *arguments)
    state = json.loads(result.stdout)
    assert (state["done"], state["waiting"], state["total"]) == (2, 2, 4)
    finished = StudyFolder(tmp_path / "out").find().finished
    assert {(each.cell.seed, each.cell.config.lr, each.cell.method) for each in finished} == {
        (4, 0.05, "cigl"), (7, 0.05, "cigl"),
    }  # fmt: skip


def test_what_is_left_of_a_study_has_its_command(monkeypatch, tmp_path):
    """Also of one whose file is gone, and which was begun with options."""
    outcomes = {"rigl": "done", "cigl": "done"}
    first = run_with(outcomes, monkeypatch, tmp_path, "--only", "method=cigl", "--set", "lr=0.05")
    assert first.exit_code == 0, first.output
    (tmp_path / "mine.yaml").unlink()
    out = tmp_path / "out"
    command = f"cigl study run {out / 'study.yaml'} --out {out}"
    assert f"{command}  train what is left: 1 run" in runner.invoke(app, ["study", "status", str(out)]).output
    rest = runner.invoke(app, [*command.split()[1:], "--json"])
    assert rest.exit_code == 0, rest.output
    assert json.loads(rest.stdout)["done"] == 2
