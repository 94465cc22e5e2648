"""What the command line says: in flags, in one line, with the next command; and how it ends."""

import json
import os
import pickle
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cigl.cli import app
from cigl.cli.train import _flag
from cigl.common.errors import CiglError, CiglWarning
from cigl.train.config import KEYS

runner = CliRunner()
QUICK = ["--train-size", "320", "--epochs", "2", "--update-every", "4", "--quiet"]


def cigl(*arguments, **variables):
    command = [sys.executable, "-m", "cigl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)


@pytest.mark.parametrize(
    ("python", "arguments", "shell"),
    [
        ("batch_size is 7, which 2 ranks", ["batch_size"], "--batch-size is 7, which 2 ranks"),
        ("lr is 0.0: it must be above 0.", ["lr"], "--lr is 0.0: it must be above 0."),
        ("lower lr or set clip, and train again.", ["lr", "clip"], "lower --lr or set --clip, and train again."),
        ("set a smaller update_every.", ["update_every"], "set a smaller --update-every."),
        (
            "method 'sparsity' has no zeros: pass sparsity=0, or",
            ["sparsity"],
            "method 'sparsity' has no zeros: pass --sparsity 0, or",
        ),
        (
            "kernels='sparse' is not possible: use kernels='auto'.",
            ["kernels"],
            "--kernels sparse is not possible: use --kernels auto.",
        ),
        ("fan_in_factor=0.5 is too low", ["fan_in_factor"], "--option fan_in_factor=0.5 is too low"),
        ("cycle_epochs is 0: give more.", ["cycle_epochs"], "cycle_epochs is 0: give more."),
        ("train it with --temperature holdout or pilot.", [], "train it with --temperature holdout or pilot."),
        ("unknown key 'epoch': did you mean 'epochs'?", [], "unknown key 'epoch': did you mean 'epochs'?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [CiglError, CiglWarning])
def test_messages_speak_in_flags(kind, python, arguments, shell):
    message = pickle.loads(pickle.dumps(kind(python, arguments=arguments)))
    assert str(message) == python
    assert message.shown(_flag) == shell


@pytest.mark.parametrize("key", KEYS)
def test_no_flag_is_made_twice(key):
    text = f"--{key.replace('_', '-')} is 3: give another."
    assert CiglError(text, arguments=KEYS).shown(_flag) == text


def test_warnings_of_a_run_speak_in_flags(tmp_path):
    result = runner.invoke(app, ["train", "--out", str(tmp_path / "a"), *QUICK])
    assert "warning: only 1 snapshot will be averaged" in result.output
    assert "--average-of p*W averages its expectation instead." in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train'? See `cigl --help`."),
        (["train", "--sparsityy", "1"], "--sparsity"),
        (["train", "--epochs", "x"], "'--epochs'"),
        (["train", "--threads", "0"], "--threads is 0: give a whole number, at least 1."),
        (["train", "--sparsity", "1.5"], "--sparsity is 1.5: "),
        (["train", "--seed", "-1"], "--seed is -1: "),
        (["train", "--epochs", "2000000"], "--epochs is 2000000: "),
        (["train", "--image-size", "3"], "--image-size is 3: "),
        (["train", "--clip", "0"], "--clip is 0.0: "),
        (["train", "--lr", "0"], "--lr is 0.0: "),
        (["train", "--weight-decay", "-1"], "--weight-decay is -1.0: "),
        (["train", "--milestones", "0.7,0.5"], "--milestones is [0.7, 0.5]: "),
        (["train", "--milestones", "a"], "--milestones is 'a': "),
        (["train", "--train-size", "9999999"], "--train-size is 9999999, but mnist1d has "),
        (["train", "--batch-size", "999999"], ": lower --batch-size."),
        (["train", "--device", "cpu", "--image-size", "64"], "--image-size is 64, but mnist1d is used as it is"),
        (["evaluate"], "missing argument 'run'"),
        (["bench", "a", "--batch", "0"], "'--batch'"),
        (["study", "run", "main"], "--out"),
        (["study", "run", "main", "--out", "a", "--only", "0.9"], "--only has '0.9': give axis=value"),
        (["study", "run", "main", "--out", "a", "--only", "sparsity=0.123"], "unknown sparsity in --only '0.123'"),
        (["predict", "none.cigl", "a.jpg"], "there is no none.cigl"),
        (["export", "none", "a.cigl"], "none is not a run folder"),
        (["report", "none"], "none holds no study"),
        (["train", "--sparsity", "95"], "--sparsity is 95.0: give a share from 0 to below 1; did you mean 0.95?"),
        (["train", "--dataset", "CIFAR10"], "did you mean 'cifar10'?"),
        (["export", "none", "model.pt"], "model.pt ends in neither .cigl nor .onnx"),
    ],
)
def test_every_mistake_is_one_line_and_changes_nothing(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("error: ")
    assert len(result.output.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_run_ends_with_its_verdict_and_the_next_commands(tmp_path):
    run = str(tmp_path / "a run")
    result = runner.invoke(app, ["train", "--out", run, *QUICK])
    assert result.exit_code == 0, result.output
    assert "\nRight in " in f"\n{result.stdout}"
    assert "next:\n" in result.stdout
    assert f"cigl export '{run}' model.cigl" in result.stdout
    explained = runner.invoke(app, ["evaluate", run, "--explain"])
    assert explained.stdout.startswith("Right in ")
    assert "expected calibration error" in explained.stdout
    file = str(tmp_path / "model.cigl")
    assert f"cigl bench {file}" in runner.invoke(app, ["export", run, file]).stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a"
    result = runner.invoke(app, ["train", "--out", str(out), *QUICK])
    assert result.exit_code == 0, result.output
    return out


def refused(*arguments):
    result = runner.invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    return result.output


def test_a_finished_run_that_is_resumed_says_how_to_train_for_longer(run, tmp_path):
    result = runner.invoke(app, ["train", "--resume", str(run)])
    assert result.exit_code == 0, result.output
    first, *_, longer, _ = result.stdout.splitlines()
    assert first == f"the run in {run} is finished: it has trained its 2 epochs."
    config = f"{run / 'config.yaml'}"
    assert f"cigl train --config {config} --epochs 4  " in longer
    out = tmp_path / "longer"
    longer = runner.invoke(app, ["train", "--config", config, "--epochs", "4", "--out", str(out), "--json"])
    assert json.loads(longer.stdout)["config"]["epochs"] == 4


def test_what_a_command_does_not_take_it_names_with_the_command_that_does(run, tmp_path):
    assert runner.invoke(app, ["bench", str(run), "--seconds", "0"]).exit_code == 0  # which needs no file
    onnx, file = tmp_path / "model.onnx", tmp_path / "model.cigl"
    assert runner.invoke(app, ["export", str(run), str(file)]).exit_code == 0
    onnx.touch()
    assert "`cigl export RUN model.cigl` writes" in refused("predict", onnx, "photo.jpg")
    assert "`cigl export RUN model.cigl` writes" in refused("bench", onnx)
    assert "`cigl evaluate RUN`" in refused("evaluate", file)


def test_evaluation_does_not_repeat_the_warnings_of_training(run):
    assert "warning" not in runner.invoke(app, ["evaluate", str(run)]).output


def test_a_place_that_can_not_be_written_to_is_all_that_is_said(tmp_path):
    (tmp_path / "file").touch()
    assert "can't be made" in refused("train", "--out", tmp_path / "file" / "a", *QUICK, "--average-of", "Z*W")
    assert "unknown model" in refused("train", "--out", tmp_path / "new" / "a", *QUICK, "--model", "mpl")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_data_list_says_what_is_here(tmp_path, monkeypatch):
    monkeypatch.setenv("CIGL_DATA", str(tmp_path))
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "checksums.json").write_bytes(b"x" * 2_000_000)
    lines = {line.split("  ")[0]: line for line in runner.invoke(app, ["data", "list"]).output.splitlines()}
    assert "here, 2 MB" in lines["cifar10"]
    assert "not downloaded" in lines["mnist"]
    assert "generated" in lines["mnist1d"]
    found = json.loads(runner.invoke(app, ["data", "list", "--json"]).output)
    assert found["cifar10"]["bytes"] == 2_000_000
    assert found["imagenet"]["state"] == "not here"


def test_help_is_grouped_and_has_defaults():
    shown = " ".join(runner.invoke(app, ["train", "--help"], terminal_width=100).output.split())
    assert "Optimizer: --optimizer <str> optimizer: sgd, adam or adamw (default: sgd)" in shown
    assert (
        shown.index("What is trained:") < shown.index("Method (") < shown.index("Output:") < shown.index("--log-every")
    )


def test_version_and_module():
    import cigl as package

    assert cigl("--version").stdout == f"cigl {package.__version__}\n"


def test_without_the_extra_there_is_one_sentence(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    source = os.path.dirname(os.path.dirname(sys.modules["cigl"].__file__))
    done = cigl(PYTHONPATH=f"{tmp_path}{os.pathsep}{source}")
    assert done.returncode == 1
    assert done.stderr == "error: the command line needs typer, which is not installed: pip install 'cigl[cli]'.\n"


@pytest.mark.parametrize(("typed", "offered"), [("cigl stu", "study"), ("cigl train --method set", "set")])
def test_the_shell_completes(typed, offered):
    words = typed.split()
    done = cigl(_CIGL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert offered in done.stdout.split()


def test_idle_threads_sleep():
    code = (
        "import os, cigl.__main__ as m, sys; sys.argv = ['cigl', '--version']\ntry: m.main()\nexcept SystemExit: pass\n"
    )
    code += "print(os.environ['OMP_WAIT_POLICY'], os.environ['KMP_BLOCKTIME'])"
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)
    assert done.stdout.splitlines()[-1] == "PASSIVE 0"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean | {"OMP_WAIT_POLICY": "ACTIVE"}
    )
    assert done.stdout.splitlines()[-1] == "ACTIVE 0"  # a user's choice stays


def test_ctrl_c_while_libraries_are_imported_is_one_line():
    code = "import os, signal\nfrom cigl.common.interrupts import ends_at_once\n"
    code += "with ends_at_once():\n    os.kill(os.getpid(), signal.SIGINT)\nprint('not reached')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted.\n")


@pytest.mark.skipif(os.name == "nt", reason="bash")
def test_a_closed_pipe_is_no_error():
    """As in `cigl methods | head -1`."""
    code = "import time; time.sleep(1); from cigl.cli import app; app(['methods'], prog_name='cigl')"
    shell = f'{{ "{sys.executable}" -c "{code}"; echo "code $?" >&2; }} | true'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.stderr == "code 141\n"


def test_ctrl_c_in_a_command_is_one_line(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("cigl.study.catalogue.names", interrupted)
    result = runner.invoke(app, ["study", "list"])
    assert result.exit_code == 130
    assert result.output == "interrupted.\n"
