import json

import pytest
from made_runs import a_study
from typer.testing import CliRunner

from cigl.cli import app
from cigl.study.store import StudyFolder


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_it_says_where_things_are(finished, tmp_path):
    done = run(finished, "--out", tmp_path / "here.html")
    assert done.exit_code == 0, done.output
    assert "main: 14 finished runs" in done.output
    assert str(tmp_path / "here.html") in done.output
    assert (tmp_path / "here" / "ece-small.tex").is_file()
    assert f"next:\n  python -m webbrowser {tmp_path / 'here.html'}  open the page\n" in done.output
    assert "study status" not in done.output


def test_json(finished, tmp_path):
    done = run(finished, "--out", tmp_path / "here.html", "--json")
    assert json.loads(done.stdout)["studies"]["main"]["finished"] == 14


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda path: None, "holds no study"),
        (lambda path: (path / "study.yaml").write_text("{"), "can't be read"),
        (lambda path: StudyFolder(path).create(a_study()), "no finished run yet"),
    ],
)
def test_bad_folders(tmp_path, prepare, sentence):
    prepare(tmp_path)
    done = run(tmp_path)
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_bad_out(finished, tmp_path):
    assert "ends in .html" in run(finished, "--out", tmp_path / "report.pdf").output
    (tmp_path / "file").write_text("")
    done = run(finished, "--out", tmp_path / "file" / "report.html")
    assert done.exit_code == 2
    assert "can't be written" in done.output
    (tmp_path / "taken.html").mkdir()
    done = run(finished, "--out", tmp_path / "taken.html")
    assert done.exit_code == 2
    assert "can't be written" in done.output
