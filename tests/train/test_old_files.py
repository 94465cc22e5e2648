"""Files that version 0.1.0 wrote before its redesign: a run stopped in the middle of an epoch, and a report."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cigl.calibrate import Report
from cigl.calibrate.reports.classification import report
from cigl.train.folder.run_folder import RunFolder
from cigl.train.run import resume, train

OLD = Path(__file__).parent / "version_0_1_0"


@pytest.mark.filterwarnings("ignore:.*snapshots will be averaged")
def test_a_run_that_was_stopped_is_resumed(tmp_path):
    shutil.copytree(OLD / "run", tmp_path / "old")
    state = RunFolder(tmp_path / "old").load_checkpoint()
    assert (state["epoch"], state["batch"]) == (1, 7)
    resumed = resume(tmp_path / "old")
    whole = train(RunFolder(OLD / "run").read_config(), tmp_path / "new")
    assert resumed["digest"] == whole["digest"] == state["digest"]
    for name in ("accuracy", "nll", "ece_15"):  # on another machine rounding may differ
        values = [each["test"]["report"][name]["value"] for each in (resumed, whole)]
        assert values[0] == pytest.approx(values[1], abs=0.02)


def test_a_report(tmp_path):
    old = Report.from_json(OLD / "report.json")
    probabilities = np.full((old.n, 6), 1 / 6)
    new = report(probabilities=probabilities, labels=old.samples.labels, resamples=100)
    assert list(old.metrics) == list(new.metrics)
    assert (old.n, old.classes, old.bins, old.resamples) == (60, 6, 15, 100)
    old.to_json(tmp_path / "again.json")
    assert Report.from_json(tmp_path / "again.json") == old
