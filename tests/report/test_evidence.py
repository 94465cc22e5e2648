import json
import shutil

import numpy as np
import pytest
from made_runs import METHODS, a_study, finish, make

from cigl import CiglError
from cigl.calibrate import Report
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import measured
from cigl.study.grid import cells
from cigl.study.store import StudyFolder


def test_numbers_are_those_of_the_reports(finished):
    evidence = Evidence.read(finished)
    assert len(evidence.runs) == 14
    assert evidence.methods("small") == ["dense", "rigl", "cigl"]
    assert evidence.sparsities("small", ["dense", "cigl"]) == [0.0, 0.8, 0.9, 0.95]
    group = evidence.group("small", "cigl", 0.9)
    assert list(group) == [0, 1]
    for scaled, name in ((False, "report.json"), (True, "report-temperature.json")):
        report = Report.from_json(group[1].path / name)
        for metric in measured():
            found = evidence.numbers("small", "cigl", 0.9, metric, scaled)[1]
            assert found.value == float(report.metrics[metric])
            assert np.array_equal(found.draws, report.draws[metric])
        assert found.floor == 0
        assert evidence.numbers("small", "cigl", 0.9, "ece_15", scaled)[1].floor == report.ece_15.floor
    assert evidence.group("small", "cigl", 0.123) == {}


def test_a_pilots_temperature_is_part_of_the_method(tmp_path):
    study = a_study(methods=("rigl",), sparsity=(0.9,), seeds=(0,))
    methods = {"rigl": METHODS["rigl"], "piloted": {"method": "rigl", "validation": 0.0, "temperature": "pilot"}}
    study = type(study)("own", settings=study.settings, methods=methods, sparsity=(0.9,), seeds=(0,))
    make(tmp_path, study)
    evidence = Evidence.read(tmp_path)
    (run,) = evidence.group("small", "piloted", 0.9).values()
    assert run.numbers[False]["nll"].value == run.numbers[True]["nll"].value
    (run,) = evidence.group("small", "rigl", 0.9).values()
    assert run.numbers[False]["nll"].value != run.numbers[True]["nll"].value


def _truncate(path):
    file = path / "report.json"
    file.write_bytes(file.read_bytes()[:200])


def _lose_samples(path):
    next(path.glob("report-[0-9a-f]*.npz")).unlink()


def _cut_samples(path):
    file = next(path.glob("report-[0-9a-f]*.npz"))
    file.write_bytes(file.read_bytes()[:500])


def _wrong_shapes(path):
    file = path / "report.json"
    plain = json.loads(file.read_text())
    file.write_text(json.dumps(plain | {"n": 7}))


def _no_metric(path):
    file = path / "report.json"
    plain = json.loads(file.read_text())
    del plain["metrics"]["ece_15"]
    file.write_text(json.dumps(plain))


def _torn_result(path):
    (path / "result.json").write_text('{"config": ')


def _other_result(path):
    (path / "result.json").write_text("[1, 2]")


def _result_without_temperature(path):
    result = json.loads((path / "result.json").read_text())
    del result["temperature"]
    (path / "result.json").write_text(json.dumps(result))


def _result_without_versions(path):
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"versions": None}))


def _seconds_in_words(path):
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"seconds": "<b>many</b>"}))


def _not_a_number(path):
    plain = json.loads((path / "report.json").read_text())
    plain["metrics"]["nll"]["value"] = float("nan")
    (path / "report.json").write_text(json.dumps(plain))


@pytest.mark.parametrize(
    "harm",
    [_truncate, _lose_samples, _cut_samples, _wrong_shapes, _no_metric, _torn_result, _other_result,
     _result_without_temperature, _result_without_versions, _seconds_in_words, _not_a_number],
)  # fmt: skip
def test_a_damaged_run_is_named_and_left_out(finished, tmp_path, harm):
    shutil.copytree(finished, tmp_path / "study")
    broken = next(run for run in Evidence.read(tmp_path / "study").runs if run.cell.method == "cigl")
    harm(broken.path)
    evidence = Evidence.read(tmp_path / "study")
    assert len(evidence.runs) == 13
    assert list(evidence.damaged) == [broken.path]
    assert len(evidence.damaged[broken.path]) > 30  # a sentence, not the name of a key


def test_damaged_masks_are_named(tmp_path):
    study = a_study(methods=("cigl",), sparsity=(0.8,), seeds=(0, 1), reference="cigl", masks=2)
    folder = make(tmp_path, study)
    path = folder.folder(cells(study)[0]).path
    (path / "masks.json").write_text("[1]")
    evidence = Evidence.read(tmp_path)
    assert len(evidence.runs) == 1
    assert len(evidence.damaged[path]) > 30


def test_runs_on_other_test_data_are_left_out(tmp_path):
    study = a_study(methods=("rigl",), sparsity=(0.8, 0.9), seeds=(0, 1))
    folder = make(tmp_path, study, but=(2,))
    path = finish(folder, cells(study)[2], other_test_data=True)
    evidence = Evidence.read(tmp_path)
    assert len(evidence.runs) == 3
    assert "other data" in evidence.damaged[path]


def test_nothing_finished(tmp_path):
    StudyFolder(tmp_path).create(a_study())
    with pytest.raises(CiglError, match=r"no finished run yet \(14 to come, 0 failed\)"):
        Evidence.read(tmp_path)


def test_no_study(tmp_path):
    with pytest.raises(CiglError, match="no study"):
        Evidence.read(tmp_path)
