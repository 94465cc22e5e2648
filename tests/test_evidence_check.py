"""What `make evidence-check` calls an honest run."""

import csv
import importlib
import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import cigl
from cigl.study.catalogue import study
from cigl.study.grid import Study, cells
from cigl.train.config import read_keys

EVIDENCE = Path(__file__).parent.parent / "evidence"


def script(name):
    spec = importlib.util.spec_from_file_location(f"evidence_{name}", EVIDENCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check, run, fresh, goals, tables = (script(name) for name in ("check", "run", "fresh", "goals", "tables"))


def test_interval_of_one_cell_is_students():
    cell = [1.0, 2.0, 4.0]
    reach = stats.t.ppf(0.975, 2) * np.std(cell, ddof=1) * np.sqrt(4 / 3)
    interval = check.prediction(cell, [], alpha=0.05)
    assert interval.low == pytest.approx(np.mean(cell) - reach)
    assert interval.high == pytest.approx(np.mean(cell) + reach)


def test_pooling_narrows_the_interval_and_never_below_the_cells_own_spread():
    cell, quiet, loud = [1.0, 2.0, 4.0], [0.0, 0.1, 0.2], [0.0, 50.0, 100.0]
    alone, with_quiet, with_loud = (check.prediction(cell, others, 0.01) for others in ([], [quiet], [loud]))
    assert alone.low < with_quiet.low
    assert with_quiet.low == pytest.approx(
        np.mean(cell) - stats.t.ppf(0.995, 4) * np.std(cell, ddof=1) * np.sqrt(4 / 3)
    )
    assert with_loud.high > with_quiet.high


def test_honest_runs_pass_as_often_as_promised():
    rng = np.random.default_rng(0)
    passed = []
    for _ in range(2000):
        scales = rng.uniform(0.5, 1.5, 8)  # cells differ in their spread
        cells = [list(rng.normal(0, scale, 3)) for scale in scales]
        interval = check.prediction(cells[0], cells[1:], alpha=0.05)
        passed.append(float(rng.normal(0, scales[0])) in interval)
    assert np.mean(passed) > 0.94


def test_another_number_does_not_pass():
    interval = check.prediction([0.050, 0.052, 0.049], [[0.1, 0.102, 0.101]], alpha=0.001)
    assert 0.051 in interval
    assert 0.1 not in interval
    assert float("nan") not in interval


def test_cells_of_the_same_and_the_next_sparsities_are_pooled():
    places = [("x", method, sparsity) for method in "ab" for sparsity in (0.8, 0.9, 0.95, 0.99)]
    cells = {place: [place] for place in [*places, ("x", "dense", 0.0), ("y", "a", 0.95)]}
    wanted = [("x", "a", 0.9), ("x", "a", 0.99), ("x", "b", 0.9), ("x", "b", 0.95), ("x", "b", 0.99)]
    assert check.neighbours(cells, ("x", "a", 0.95)) == [[place] for place in wanted]
    wanted = [("x", "a", 0.95), ("x", "a", 0.99), ("x", "b", 0.95)]
    assert check.neighbours(cells, ("x", "b", 0.99)) == [[place] for place in wanted]


def test_every_study_of_the_evidence_is_checked():
    assert set(check.CELLS) == {f"{name}{end}" for end in run.SCALES for name in run.STUDIES} | set(run.FILES)
    for name, place in check.CELLS.items():
        assert len(check.committed(name)[place]) >= 2


def test_results_hold_what_is_read(tmp_path):
    """By people or by check.py; what `cigl report` can write again is not kept, nor what an earlier report left."""
    report, results = tmp_path / "report", tmp_path / "results"
    report.mkdir()
    results.mkdir()
    for name in ("ece-a.md", "ece-a.tex", "ece-a.csv", "sparsity-a.png", "sparsity-a.svg", "data.json", "runs.csv"):
        (report / name).write_text(name)
    (results / "old.md").write_text("old")
    run.keep(report, results)
    assert {path.name for path in results.iterdir()} == {"ece-a.md", "sparsity-a.png", "data.json"}
    committed = [path for path in check.RESULTS.rglob("*") if path.is_file()]
    assert {path.suffix for path in committed} == set(run.KEPT)
    assert len(committed) < 230


def test_the_thin_network_of_mask_rates_is_that_of_the_catalogue():
    main = {cell.digest for cell in cells(study("main", "small-conv"))}
    thin = [cell for cell in cells(Study.of(read_keys(EVIDENCE / "mask-rates.yaml"))) if cell.setting == check.THIN]
    assert {cell.method for cell in thin if cell.digest in main} == {"rigl", "cigl-3", "cigl-10"}


def test_the_rule_that_was_searched_is_the_catalogues(monkeypatch):
    """And every run of search.csv is one that search.py can run again."""
    monkeypatch.syspath_prepend(EVIDENCE)
    search = importlib.import_module("search")
    candidate = cigl.method("search:Candidate", **search.CANDIDATES["straight 0.13, n-3"]["options"])
    rule = cigl.method("cigl-rise")
    for steps_per_epoch in (7, 70):
        tables = [each.timetable(10, steps_per_epoch) for each in (candidate, rule)]
        assert tables[0].snapshot_steps == tables[1].snapshot_steps
        for active, layers, step in itertools.product((1, 250, 1700, 10**5), (1, 3, 10), (1, 20, 60, 70)):
            layer = SimpleNamespace(units=100, layers=layers)
            rates = [each.mask_rate(layer, active, tables[0], step) for each in (candidate, rule)]
            assert rates[0] == pytest.approx(rates[1])
    rows = list(csv.DictReader(search.FILE.open()))
    assert len(rows) == 335
    for row in rows:
        candidate, _, temperature = row["candidate"].partition("; T ")
        assert temperature in ("", *search.TEMPERATURES)
        config = search.configuration(candidate, row["setting"], float(row["sparsity"]), int(row["seed"]))
        assert config.seed >= 100


def test_images_of_the_table_are_no_ones_of_the_search(monkeypatch):
    """Nor those of the other studies, which learn from the first ones and have the official test images."""
    monkeypatch.syspath_prepend(EVIDENCE)
    search = importlib.import_module("search")
    taken = []

    class Numbers:
        def take(self, numbers):
            taken.append(set(numbers))
            return self

    source = SimpleNamespace(name="images", classes=10, shape=(3, 32, 32), train=Numbers())
    monkeypatch.setattr(cigl.data, "open", lambda *_, **__: source)
    monkeypatch.setattr(fresh, "replace", lambda source, **_: source)
    fresh.cifar10()
    (learned, tested), used = taken, len(taken)
    for setting, seeds in (("mlp", (100, 101)), ("wrn10", (100, 101, 102, 103))):
        for seed in seeds:
            search.splits(SimpleNamespace(dataset="images", seed=seed), search.SETTINGS[setting][2])
    searched = set().union(*taken[used:])
    assert not learned & tested
    assert not (learned | tested) & (searched | set(range(10_000)))
    assert max(tested) < 50_000  # CIFAR-10 has no more to learn from
    with pytest.raises(ValueError, match="validation images"):
        search.splits(SimpleNamespace(dataset="images", seed=102), search.SETTINGS["mlp"][2])


def test_goals_are_judged_from_the_committed_runs(capsys):
    goals.main()
    text = capsys.readouterr().out
    for title in goals.TITLES.values():
        assert f"{title}: accuracy (%) / ECE / NLL" in text
    assert text.count("accuracy − RigL's") >= 2


@pytest.mark.parametrize("name", ["main", "calibrators-conv", "mask-correlation", "mask-rates", "rise-conv"])
def test_committed_tables_follow_todays_rules(name):
    folder = EVIDENCE.parent / "results" / name
    assert {file: (folder / file).read_text() for file in (path.name for path in folder.glob("*.md"))} == tables.tables(
        folder
    )


def test_a_goal_is_met_by_its_mean():
    """An interval that includes 0 does not make a lower accuracy "not below"."""
    study = goals.Study("rise-conv")
    assert goals.accuracy_goal(study, "cigl-rise", 0.99).startswith("**no**: −1.28 ")
    assert goals.accuracy_goal(study, "cigl-rise", 0.9).startswith("yes: +0.06 ")


def test_the_goals_in_the_docs_are_those_that_the_script_prints(capsys):
    goals.main()
    page = (EVIDENCE.parent / "docs" / "results.md").read_text().replace("**CigL", "CigL")
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ") and "−" in row]
    assert len(rows) > 10
    assert [row for row in rows if row not in page] == []
