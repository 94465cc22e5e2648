"""The files that other tools read: workflows, hooks, templates, the citation. They agree with the package."""

import re
from pathlib import Path

import pytest
import yaml
from build_distributions import ROOT

import cigl

GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")


def read(path):
    return yaml.safe_load(Path(path).read_text("utf-8"))


def steps(path):
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def pinned(name):
    return re.search(rf"^{name}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)


def test_there_are_workflows_and_forms():
    assert {path.stem for path in WORKFLOWS} >= {"tests", "wheels", "docs"}
    assert {path.stem for path in FORMS} >= {"bug", "feature"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows(path):
    workflow = read(path)
    assert {"name", "jobs", "permissions"} <= set(workflow)
    assert True in workflow, "YAML reads the key `on` as true"
    for job in workflow["jobs"].values():
        assert set(job.get("needs", [])) <= set(workflow["jobs"]) or job["needs"] in workflow["jobs"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), "a commit, which nobody can move"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_make_what_there_is_to_make(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {"docs"}
    made = {match for step in steps(path) for match in re.findall(r"make ([a-z-]+)", step.get("run", ""))}
    assert made <= targets


def test_every_python_that_is_promised_is_tested():
    text = (ROOT / "pyproject.toml").read_text()
    promised = re.findall(r"Python :: (3\.\d+)", text)
    assert read(GITHUB / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"] == promised
    assert f'requires-python = ">={promised[0]}"' in text
    assert f'target-version = "py{promised[0].replace(".", "")}"' in text


def test_wheels_are_made_by_cibuildwheel():
    commands = [step.get("run", "") for step in steps(GITHUB / "workflows/wheels.yml")]
    assert [command for command in commands if re.search(r"install cibuildwheel==\d", command)]
    assert "[tool.cibuildwheel]" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        if part["type"] == "markdown":
            assert part["attributes"]["value"]
        else:
            assert part["id"]
            assert part["attributes"]["label"]


def test_hooks_are_the_pinned_tools():
    ruff, local = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert ruff["rev"] == f"v{pinned('ruff')}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    [mypy] = local["hooks"]  # from the environment of the Makefile, which the constraints pin
    assert mypy["entry"] == ".venv/bin/mypy"
    assert pinned("mypy")


def test_the_citation():
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["version"] == cigl.__version__
    paper = citation["preferred-citation"]
    assert paper["title"] == "Calibrating the Rigged Lottery: Making All Tickets Reliable"
    assert [author["family-names"] for author in paper["authors"]] == ["Lei", "Xu", "Zhang", "Mallick"]
    assert {"type", "year", "conference"} <= set(paper)


def test_security_and_changelog():
    text = (ROOT / "SECURITY.md").read_text()
    for path in re.findall(r"\]\((src/[^)]+)\)", text):
        assert (ROOT / path).exists()
    assert re.search(r"^## (Unreleased|\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
