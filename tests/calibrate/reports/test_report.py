import copy
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from simulate import world

from cigl import CiglError, CiglWarning
from cigl.calibrate import Report, report


@pytest.fixture(scope="module")
def one() -> Report:
    logits, labels = world(400, 1.5, 7)
    return report(logits=logits, labels=labels, resamples=100)


def test_everything_the_issue_lists_is_there(one):
    names = {"accuracy", "top5", "nll", "brier", "gap", "ece_15", "ece_10", "ece_mass_15", "ece_classwise_15", "mce_15",
             "l2_debiased_15", "aurc"}  # fmt: skip
    assert set(one.metrics) == names
    assert next(iter(one.metrics)) == "accuracy"
    for name in names:
        e = getattr(one, name)
        assert e.low <= e.high
        assert (e.floor is not None) == name.startswith(("ece", "mce"))
    assert one.ece == one.ece_15
    assert one.ece_classwise == one.ece_classwise_15
    assert len(one.table) == 15
    assert sum(row.count for row in one.table) == one.n == 400


def test_other_bins_add_their_own_names():
    logits, labels = world(200)
    r = report(logits=logits, labels=labels, bins=20, resamples=20)
    assert {"ece_20", "ece_15", "ece_10", "mce_20", "ece_classwise_20", "l2_debiased_20"} <= set(r.metrics)
    assert r.ece == r.ece_20
    assert "top5" not in r.metrics  # 5 classes
    assert "ece_20" in dir(r)
    with pytest.raises(AttributeError, match="did you mean 'mce_20'"):
        _ = r.mce_21


def test_json_round_trip_is_exact(one, tmp_path):
    path = tmp_path / "report.json"
    one.to_json(path)
    loaded = Report.from_json(path)
    assert loaded == one
    assert loaded.to_dict() == one.to_dict()
    assert np.array_equal(loaded.samples.nll, one.samples.nll)
    assert loaded.samples.labels.dtype == one.samples.labels.dtype
    assert str(loaded) == str(one)
    other, own = sorted(p.name for p in tmp_path.iterdir())
    assert re.fullmatch("report-[0-9a-f]{16}.npz", other)
    assert own == "report.json"


def test_json_names_carry_their_scheme(one, tmp_path):
    one.to_json(tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    plain = json.loads(text)
    assert '"ece"' not in text
    assert '"mce"' not in text
    assert plain["metrics"]["ece_15"]["floor"] == one.ece_15.floor
    with np.load(tmp_path / plain["samples"], allow_pickle=False) as kept:
        assert {"labels", "confidence", "correct", "nll", "brier"} <= set(kept.files)


@pytest.mark.parametrize("stop", range(4))
def test_whenever_a_write_stops_a_whole_report_is_there(one, tmp_path, monkeypatch, stop):
    path = tmp_path / "r.json"
    one.to_json(path)
    logits, labels = world(300, 1.5, 5, seed=9)
    new = report(logits=logits, labels=labels, resamples=20)
    with monkeypatch.context() as patched:
        left = [stop]

        def fail(step):
            def run(*args, **kwargs):
                if not left[0]:
                    raise OSError("disk full")
                left[0] -= 1
                return step(*args, **kwargs)

            return run

        patched.setattr("numpy.savez_compressed", fail(np.savez_compressed))
        patched.setattr("os.replace", fail(os.replace))
        patched.setattr("pathlib.Path.iterdir", fail(Path.iterdir))
        with pytest.raises(OSError, match="disk full"):
            new.to_json(path)
    assert Report.from_json(path) == (new if stop == 3 else one)
    new.to_json(path)
    assert Report.from_json(path) == new
    assert len(list(tmp_path.iterdir())) == 2


def test_reports_do_not_overwrite_each_other(one, tmp_path):
    with pytest.raises(CiglError, match=r"does not end in \.json"):
        one.to_json(tmp_path / "model-lr0.1")
    with pytest.raises(CiglError, match=r"no folder .*: make it first"):
        one.to_json(tmp_path / "none" / "r.json")
    logits, labels = world(300, 1.5, 5, seed=9)
    new = report(logits=logits, labels=labels, resamples=20)
    one.to_json(tmp_path / "model-lr0.1.json")
    new.to_json(tmp_path / "model-lr0.json")
    new.to_json(tmp_path / "model.json")
    assert Report.from_json(tmp_path / "model-lr0.1.json") == one


def _without(plain, name):
    return {key: value for key, value in plain.items() if key != name}


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: _without(p, "metrics"),
        lambda p: _without(p, "n"),
        lambda p: p | {"metrics": []},
        lambda p: p | {"metrics": {"nll": {"value": 1}}},
        lambda p: p | {"metrics": p["metrics"] | {"nll": {"value": "abc", "low": 0, "high": 1}}},
        lambda p: p | {"metrics": _without(p["metrics"], "brier")},
        lambda p: p | {"table": [{}]},
        lambda p: p | {"table": p["table"][1:]},
        lambda p: p | {"n": "x"},
        lambda p: p | {"n": 5},
        lambda p: p | {"bins": 7},
    ],
)
def test_a_damaged_report(one, tmp_path, damage):
    path = tmp_path / "r.json"
    one.to_json(path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(CiglError, match="does not hold what a report holds: write the report again"):
        Report.from_json(path)


def _npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _assert_refused(one, folder, data):
    """Samples whose hash fits, and which are not a report's all the same."""
    path = folder / "r.json"
    one.to_json(path)
    digest = hashlib.sha256(data).hexdigest()
    name = f"r-{digest[:16]}.npz"
    (folder / name).write_bytes(data)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"samples": name, "samples_sha256": digest}))
    with pytest.raises(CiglError, match="does not hold what a report holds"):
        Report.from_json(path)


@pytest.mark.parametrize("data", [
    b"", b"no zip", b"PK\x03\x04garbage", _npz(labels=np.arange(3)), _npz(labels=np.array([{}], dtype=object)),
])  # fmt: skip
def test_damaged_samples_of_the_right_hash(one, tmp_path, data):
    _assert_refused(one, tmp_path, data)


def test_samples_of_other_lengths(one, tmp_path):
    kept = {f.name: getattr(one.samples, f.name) for f in fields(one.samples)}
    kept = {name: values for name, values in kept.items() if values is not None}
    draws = {f"draws/{name}": values for name, values in one.draws.items()}
    for arrays in ({k: v[:10] for k, v in kept.items()} | draws, kept, kept | {"draws/nll": one.draws["nll"]}):
        _assert_refused(one, tmp_path, _npz(**arrays))


def test_labels_are_kept_apart_from_the_callers():
    logits, labels = world(50)
    given = labels.numpy().copy()
    r = report(logits=logits, labels=given, resamples=5)
    given[:] = 0
    assert np.array_equal(r.samples.labels, labels.numpy())


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"format": "else"}', "\x00\xff", "[" * 100_000])
def test_a_file_that_is_not_a_report(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CiglError, match=r"is not a calibration report: report\.to_json"):
        Report.from_json(tmp_path / "x.json")


def test_files_that_do_not_belong_together(one, tmp_path):
    one.to_json(tmp_path / "a.json")
    with pytest.raises(CiglError, match="no file"):
        Report.from_json(tmp_path / "b.json")
    samples = tmp_path / json.loads((tmp_path / "a.json").read_text())["samples"]
    samples.rename(tmp_path / "b.npz")
    with pytest.raises(CiglError, match="move both files together"):
        Report.from_json(tmp_path / "a.json")
    samples.write_bytes(b"no zip")
    with pytest.raises(CiglError, match="belongs to another report"):
        Report.from_json(tmp_path / "a.json")
    plain = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(plain | {"version": 99}))
    with pytest.raises(CiglError, match="version 99, this cigl reads 1: read it with the cigl that wrote it"):
        Report.from_json(tmp_path / "a.json")


def test_printing_is_a_compact_table(one):
    lines = str(one).splitlines()
    assert lines[0].startswith("Right in ")
    table = lines[lines.index("") + 1 :]
    assert table[0].startswith("400 samples, 7 classes")
    assert len(table) == 2 + len(one.metrics)
    assert max(map(len, lines)) <= 80


def test_copies_are_equal(one):
    again = copy.deepcopy(one)
    assert again == one
    assert again.ece_15.floor == one.ece_15.floor
    assert one != "a report"


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_classes_and_dtypes(classes, dtype):
    logits, labels = world(60, classes=classes)
    logits = logits.to(dtype)
    from_logits = report(logits=logits, labels=labels, resamples=5)
    probabilities = logits.float().softmax(1).to(dtype) if dtype.itemsize < 8 else logits.softmax(1)
    from_probabilities = report(probabilities=probabilities, labels=labels, resamples=5)
    tolerance = 20 * max(torch.finfo(dtype).eps, 1e-6)
    assert from_probabilities.brier == pytest.approx(from_logits.brier, abs=tolerance)
    exact = report(logits=logits.double(), labels=labels, resamples=5)
    assert from_logits.to_dict() == exact.to_dict()


def test_the_same_whatever_carries_it():
    logits, labels = world(50)
    expected = report(logits=logits, labels=labels, resamples=20)
    assert report(logits=logits.numpy(), labels=labels.numpy(), resamples=20) == expected
    assert report(logits=logits.tolist(), labels=labels.int(), resamples=20).nll == pytest.approx(
        expected.nll, rel=1e-6
    )
    assert report(logits=logits.clone().requires_grad_(), labels=labels, resamples=20) == expected


def test_nll_of_logits_stays_finite():
    r = report(logits=torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]), labels=[1, 1], resamples=20)
    assert r.nll == pytest.approx(500)
    ruled_out = report(logits=torch.tensor([[1.0, -torch.inf, 0.0]]), labels=[0], resamples=20)
    assert np.isfinite(ruled_out.nll)


def test_probability_zero_for_the_true_class_warns():
    with pytest.warns(CiglWarning, match="1 samples have probability 0 for their true class"):
        r = report(probabilities=[[1.0, 0.0], [1.0, 0.0]], labels=[1, 0], resamples=20)
    assert np.isfinite(r.nll)


def test_importing_cigl_imports_nothing_heavy():
    code = "import sys, cigl; print([m for m in ('scipy', 'matplotlib', 'relplot', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_without_the_extras_the_way_out_is_named(one, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "relplot", None)
    with pytest.raises(CiglError, match=r"cigl\[smooth\]"):
        one.smooth_ece()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CiglError, match=r"cigl\[plot\]"):
        one.reliability_diagram(tmp_path / "x.svg")


GOOD = {"probabilities": [[0.5, 0.5], [0.1, 0.9]], "labels": [0, 1]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": [[0.0, 1.0]] * 2}, "both of logits and probabilities given: pass exactly one"),
        ({"probabilities": None}, "neither of logits and probabilities given"),
        ({"probabilities": [[float("nan"), 0.5], [0.1, 0.9]]}, "probabilities have NaN or infinity"),
        ({"probabilities": None, "logits": [[float("nan"), 0.5], [0.1, 0.9]]}, "logits have NaN or infinity"),
        ({"probabilities": None, "logits": [[float("inf"), 0.5], [0.1, 0.9]]}, "logits have NaN or infinity"),
        ({"probabilities": [[0.5, 0.6], [0.1, 0.9]]}, "row 0 .* sums to 1.1 .*if these are logits, pass logits="),
        ({"probabilities": [[0.5, 0.5], [-0.1, 1.1]]}, "row 1 .* smallest entry -0.1"),
        ({"labels": [0, 2]}, "labels run from 0 to 2, but there are 2 classes"),
        ({"labels": [-1, 1]}, "labels run from -1 to 1"),
        (
            {"labels": [0]},
            r"labels must be one class number per row, integers of shape \(2,\), not int64 of shape \(1,\)",
        ),
        ({"labels": [[1, 0], [0, 1]]}, "of one-hot labels take labels.argmax"),
        ({"labels": [0.0, 1.0]}, "integers of shape"),
        ({"probabilities": np.zeros((0, 2)), "labels": np.zeros(0, int)}, "there are no samples"),
        ({"probabilities": [[1.0], [1.0]]}, "at least 2 are needed"),
        ({"probabilities": [0.3, 0.4]}, "pass both columns, 1-p and p"),
        ({"probabilities": [[0, 1], [1, 0]]}, "floating-point numbers of shape"),
        ({"bins": 1}, "at least 2 bins"),
        ({"bins": 2.5}, "at least 2 bins"),
        ({"resamples": 0}, "at least 2, usually 1000"),
    ],
)
def test_bad_input(changed, message):
    with pytest.raises(CiglError, match=message):
        report(**(GOOD | changed))
