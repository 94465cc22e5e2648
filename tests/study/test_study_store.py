"""A study's folder: what belongs to it, what it refuses, and that every run of the grid is accounted for."""

import json

import pytest
from quick import METHODS, SETTING, quick

from cigl import CiglError
from cigl.study.grid import cells
from cigl.study.show import status
from cigl.study.store import StudyFolder, record_failure


def test_what_is_created_is_read_back_and_resumed(tmp_path):
    folder = StudyFolder(tmp_path / "a")
    folder.create(quick())
    before = folder.file.read_bytes()
    assert folder.read() == StudyFolder(tmp_path / "a").read()
    folder.create(quick())
    assert folder.file.read_bytes() == before
    assert folder.runs == tmp_path / "a" / "runs"


def test_seeds_are_added(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.create(quick(seeds=(0, 1)), tmp_path / "shared")
    folder.create(quick(seeds=(5, 1)))
    assert folder.read().seeds == (0, 1, 5)
    assert folder.runs.resolve() == tmp_path / "shared"


def test_what_people_read_may_change(tmp_path):
    """A folder of an older cigl can be resumed although the catalogue describes the study in other words."""
    folder = StudyFolder(tmp_path)
    folder.create(quick(about="as it was", seeds=(0,)))
    folder.create(quick(about="as it is", labels={"rigl": "RigL"}, seeds=(1,)))
    assert (folder.read().about, folder.read().label("rigl"), folder.read().seeds) == ("as it is", "RigL", (0, 1))


def test_another_study_is_refused_and_nothing_changes(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.create(quick())
    before = folder.file.read_bytes()
    for other in (quick(sparsity=(0.9,)), quick(settings={"toy": SETTING | {"lr": 0.3}})):
        with pytest.raises(CiglError, match="holds another study"):
            folder.create(other)
    with pytest.raises(CiglError, match="leave --runs out"):
        folder.create(quick(), tmp_path / "elsewhere")
    assert folder.file.read_bytes() == before


def test_runs_in_a_folder_that_studies_share(tmp_path):
    one, two = StudyFolder(tmp_path / "one"), StudyFolder(tmp_path / "two")
    one.create(quick(), tmp_path / "runs")
    two.create(quick(methods={"rigl": METHODS["rigl"]}), tmp_path / "runs")
    rigl = cells(two.read())[0]
    assert one.folder(rigl).path.resolve() == two.folder(rigl).path.resolve()


OF_0_1 = """name: main
settings:
  small: {preset: mnist1d-mlp, validation: 0.1, temperature: holdout}
methods:
  dense: {method: dense, sparsity: 0.0}
  rigl: {method: rigl}
sparsity: [0.8, 0.9]
seeds: [0, 1]
about: ''
reference: rigl
masks: 0
labels: {dense: Dense, rigl: RigL}
runs: ../runs
"""


def test_a_study_of_version_0_1_finds_its_runs(tmp_path):
    """Their folders are named by digests, which must not change."""
    (tmp_path / "study.yaml").write_text(OF_0_1)
    folder = StudyFolder(tmp_path)
    found = cells(folder.read())
    assert len(found) == 6
    assert [cell.digest for cell in found[:2]] == ["c79710a8db804a30", "70eac6d28ad13d34"]
    assert folder.folder(found[0]).path == tmp_path / "../runs/c79710a8db804a30"


@pytest.mark.parametrize("content", ["- 1", "a: [", "name: x\nsettings: {}\nmethods: {}\n"])
def test_a_damaged_study_file_is_one_line(content, tmp_path):
    (tmp_path / "study.yaml").write_text(content)
    with pytest.raises(CiglError):
        StudyFolder(tmp_path).read()


def test_no_study_and_no_place_for_one(tmp_path):
    with pytest.raises(CiglError, match="holds no study: `cigl study run"):
        StudyFolder(tmp_path).read()
    (tmp_path / "file").write_text("")
    with pytest.raises(CiglError, match="can't be written to"):
        StudyFolder(tmp_path / "file" / "a").create(quick())


def finish(folder, cell, **more):
    run = folder.folder(cell)
    run.path.mkdir(parents=True, exist_ok=True)
    run.write_json("result.json", {"config": cell.config.plain()} | more)
    return run


def test_every_cell_is_in_one_of_the_lists(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.create(quick(sparsity=(0.5, 0.6, 0.7)))
    done, failed, damaged, strange, locked, missing = cells(folder.read())
    finish(folder, done)
    record_failure(folder.folder(failed), "out of luck", "Traceback ...")
    finish(folder, damaged)
    (folder.folder(damaged).path / "result.json").write_text("{")
    finish(folder, strange, config={})
    found = folder.find()
    assert [each.cell for each in found.finished] == [done]
    assert found.failed == {failed: {"message": "out of luck", "traceback": "Traceback ..."}}
    assert set(found.damaged) == {folder.folder(damaged).path, folder.folder(strange).path}
    assert found.missing == [locked, missing]
    with folder.folder(locked).locked():
        state = status(folder)
    assert state["running"] == [str(locked)]
    assert (state["done"], state["waiting"], state["total"], len(state["failed"]), len(state["damaged"])) == (
        1,
        1,
        6,
        1,
        2,
    )
    json.dumps(state)


def test_a_run_is_not_finished_before_its_masks_are_drawn(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.create(quick(methods={"cigl": METHODS["cigl"]}, masks=2, reference="cigl"))
    (cell,) = cells(folder.read())
    run = finish(folder, cell)
    assert folder.find().missing == [cell]
    run.write_json("masks.json", {"W": 0.5, "Z*W": [0.4]})  # as another study that shares the run wanted it
    assert folder.find().missing == [cell]
    run.write_json("masks.json", {"W": 0.5, "Z*W": [0.4, 0.3]})
    assert folder.find().finished[0].masks == {"W": 0.5, "Z*W": [0.4, 0.3]}
    other = StudyFolder(tmp_path / "other")  # shares the run, and draws none
    other.create(quick(methods={"cigl": METHODS["cigl"]}, reference="cigl"), folder.runs)
    assert other.find().finished[0].masks is None


@pytest.mark.parametrize("text", ["{", "7", '"text"', "\xff"])
def test_a_damaged_error_is_named(tmp_path, text):
    folder = StudyFolder(tmp_path)
    folder.create(quick(methods={"rigl": METHODS["rigl"]}))
    (cell,) = cells(folder.read())
    run = folder.folder(cell)
    run.path.mkdir(parents=True)
    (run.path / "error.json").write_text(text, encoding="latin-1")
    assert str(run.path) in folder.find().damaged[run.path]
    (run.path / "error.json").write_text("[]")
    assert status(folder)["failed"][0]["message"] == ""


def test_a_failure_that_can_not_be_recorded_is_not_another_failure(tmp_path):
    (tmp_path / "file").write_text("")
    folder = StudyFolder(tmp_path)
    folder.create(quick(), tmp_path / "file")
    record_failure(folder.folder(cells(quick())[0]), "the disk is full")  # raises nothing
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_of_an_earlier_version_keeps_the_first_examples(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.create(quick())
    assert {cell.config.subset for cell in cells(folder.read())} == {"stratified"}
    folder.file.write_text(folder.file.read_text().replace("    subset: stratified\n", ""))
    assert {cell.config.subset for cell in cells(folder.read())} == {"first"}
    with pytest.raises(CiglError, match="another study"):
        folder.create(quick())
