import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import a_study, make

from cigl.report.evidence.comparisons import change, relative
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.metrics import METRICS
from cigl.report.tables.catalogue import kinds_of_tables, make_tables
from cigl.report.tables.formats import FORMATS, NOTHING, Entry, Table, to_csv, to_latex, to_markdown
from cigl.report.write import write_report
from cigl.study.catalogue import study


@pytest.fixture(scope="module")
def evidence(finished):
    return Evidence.read(finished)


def table_of(evidence, name, setting="small"):
    return kinds_of_tables()[name].make(evidence, setting)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """RigL, CigL and more as the paper ran them."""
    path = tmp_path_factory.mktemp("papers")
    make(path, replace(study("dropout", "paper"), sparsity=(0.8, 0.95), seeds=(0, 1)), n=200)
    return Evidence.read(path)


def row(table, label, *more):
    """By what stands in the first columns."""
    wanted = (label, *more)
    return next(r for r in table.rows if tuple(entry.text for entry in r[: len(wanted)]) == wanted)


def test_as_the_paper_prints_it(papers):
    setting = "cifar10-resnet50"
    table = table_of(papers, "ece", setting)
    assert table.columns == ("Method", "0 %", "80 %", "paper 80 %", "95 %", "paper 95 %")
    numbers = [one.value for one in papers.numbers(setting, "cigl", 0.8, "ece_15", False).values()]
    entry = row(table, "CigL")[2]
    assert entry.value == pytest.approx(np.mean(numbers))
    assert entry.spread == pytest.approx(np.std(numbers, ddof=1))
    assert entry.text == f"{np.mean(numbers):.4f} ± {np.std(numbers, ddof=1):.4f}"
    assert row(table, "CigL")[3].text == "0.0356 ± 0.001"  # CIFAR-10, ResNet-50, 80 %
    assert row(table, "RigL + MC-DP")[5].text == "0.0121 ± 0.001"
    assert row(table, "CigL (p*W), pilot")[3].text == NOTHING
    assert row(table, "Dense")[2].text == NOTHING
    assert any("CIFAR-10, ResNet-50, the same network, data and training; here 10 %" in note for note in table.notes)
    accuracy = table_of(papers, "accuracy", setting)
    assert row(accuracy, "RigL")[5].text == "93.19 ± 0.198"


def test_the_papers_numbers_stand_beside_no_other_setting(evidence, tmp_path):
    """Neither beside MNIST-1D, whatever the study is called, nor beside its own network trained in another way."""
    setting = {"preset": "cifar10-resnet50", "epochs": 10}
    make(tmp_path, a_study("dropout", methods=("rigl", "cigl"), settings={"short": setting}, seeds=(0,)), n=100)
    for found, name in ((evidence, "small"), (Evidence.read(tmp_path), "short")):
        for kind in ("ece", "accuracy"):
            table = table_of(found, kind, name)
            assert not any(column.startswith("paper") for column in table.columns)
            assert not any("paper" in note for note in table.notes)


def test_bold_where_the_ece_falls_by_15_percent(evidence):
    table = table_of(evidence, "ece")
    for label, method in (("RigL", "rigl"), ("CigL", "cigl")):
        for column, sparsity in ((2, 0.8), (3, 0.9), (4, 0.95)):
            fallen = relative(evidence, "small", method, sparsity) <= -0.15
            accuracy = change(evidence, "small", method, sparsity, "accuracy")
            assert row(table, label)[column].bold == (fallen and accuracy.high >= 0)
    assert any(entry.bold for entry in row(table, "CigL"))


def test_accuracy_is_in_percent(evidence):
    table = table_of(evidence, "accuracy")
    numbers = [one.value for one in evidence.numbers("small", "rigl", 0.95, "accuracy", False).values()]
    assert row(table, "RigL")[4].value == pytest.approx(100 * np.mean(numbers))


def test_after_temperature_scaling(evidence):
    table = table_of(evidence, "ece-temperature")
    numbers = [one.value for one in evidence.numbers("small", "rigl", 0.9, "ece_15", True).values()]
    assert row(table, "RigL")[table.columns.index("90 %")].value == pytest.approx(np.mean(numbers))
    assert not any(column.startswith("paper") for column in table.columns)


def test_differences(evidence):
    table = table_of(evidence, "differences")
    assert all(r[0].text != "RigL" for r in table.rows)
    found = row(table, "CigL", "90 %")
    ours, theirs = (evidence.numbers("small", m, 0.9, "ece_15", False) for m in ("cigl", "rigl"))
    gap = np.mean([ours[s].value - theirs[s].value for s in (0, 1)])
    assert found[4].value == pytest.approx(gap)
    assert found[5].value == pytest.approx(100 * gap / np.mean([theirs[s].value for s in (0, 1)]))
    low, high = (float(end.replace("−", "-")) for end in re.findall(r"[+−][\d.]+", found[4].text)[1:])
    assert low <= found[4].value <= high
    assert found[4].bold == (high < 0)
    assert found[2].text.startswith("better calibrated" if high < 0 else "not significantly different")


def test_intervals_show_both_parts(evidence):
    table = table_of(evidence, "intervals-ece")
    found = dict(zip(table.columns, row(table, "CigL", "80 %"), strict=True))
    assert found["Seeds"].value == 2
    assert found["Error: seeds"].value > 0
    assert found["Error: test points"].value > 0
    assert found["95 % low"].value <= found["Mean"].value <= found["95 % high"].value
    assert found["Noise floor"].value > 0


def test_cost_is_that_of_the_results(evidence):
    found = row(table_of(evidence, "cost"), "CigL", "80 %")
    assert [entry.value for entry in found[2:]] == pytest.approx([0.3, 0.2, 11.5])


def test_cost_names_active_weights_that_are_zero(tmp_path):
    make(tmp_path, a_study(methods=("rigl", "cigl"), sparsity=(0.8,)))
    assert not any("Non-zero" in note for note in table_of(Evidence.read(tmp_path), "cost").notes)  # runs don't say
    for file in tmp_path.glob("runs/*/result.json"):
        result = json.loads(file.read_text())
        fewer = 11 * (result["config"]["method"] == "cigl")
        file.write_text(json.dumps(result | {"active": 1293, "nonzeros": 1293 - fewer}))
    note = "Non-zero weights, where some of the active positions hold a zero: CigL at 80 %: 1,282 of 1,293."
    assert note in table_of(Evidence.read(tmp_path), "cost").notes
    write_report([tmp_path], tmp_path / "report.html")
    runs = list(csv.DictReader(io.StringIO((tmp_path / "report" / "runs.csv").read_text())))
    assert {(each["method"], each["active"], each["nonzeros"]) for each in runs} == {
        ("rigl", "1293", "1293"),
        ("cigl", "1293", "1282"),
    }


def test_ece_changes_beside_the_papers_with_its_slip(tmp_path):
    make(tmp_path, replace(study("sup-tickets", "paper"), sparsity=(0.8,), seeds=(0,)), n=100)
    table = table_of(Evidence.read(tmp_path), "ece-change", "cifar100-resnet50")
    assert row(table, "CigL")[2].text == "−0.0141"
    assert any("repeats its differences of WRN-22-2" in note for note in table.notes)
    assert any("the same network, data and training" in note for note in table.notes)
    assert not any(entries[0].text == "RigL" for entries in table.rows)  # it has no change against itself


def test_ece_changes_are_those_of_the_table_that_the_study_is_about(tmp_path):
    make(tmp_path, replace(study("wma-effect", "paper"), sparsity=(0.8,), seeds=(0,)), n=100)
    table = table_of(Evidence.read(tmp_path), "ece-change", "cifar100-resnet50")
    assert [row(table, label)[2].text for label in ("CigL", "CigL w/o RM")] == ["−0.0010", "+0.0038"]
    assert not any("slip" in note for note in table.notes)


def test_ece_changes_against_another_reference_are_not_the_papers(tmp_path):
    make(tmp_path, replace(study("wma-effect", "paper"), sparsity=(0.8,), seeds=(0,), reference="cigl"), n=100)
    table = table_of(Evidence.read(tmp_path), "ece-change", "cifar100-resnet50")
    assert table.columns == ("Method", "80 %")


def test_the_set_table_with_its_slip(tmp_path):
    setting = {"preset": "cifar10-resnet50", "validation": 0.1, "temperature": "holdout"}
    own = a_study("set", methods=("rigl",), sparsity=(0.5,), settings={"paper": setting})
    make(tmp_path, replace(own, methods={"set": {"method": "set"}}, reference="set"))
    table = table_of(Evidence.read(tmp_path), "ece", "paper")
    assert [entry.text for entry in table.rows[0]][2] == "0.0429"
    assert any("labels this row CIFAR-100" in note for note in table.notes)


def test_masks(tmp_path):
    make(tmp_path, a_study("mine", methods=("cigl",), sparsity=(0.5,), masks=5, reference="cigl"))
    table = make_tables(Evidence.read(tmp_path))[0]
    assert table.name == "masks-small"
    assert [entry.value for entry in table.rows[0][2:]] == pytest.approx([89.5, 82.5, 7.0])


def test_a_metric_of_the_registry_reaches_the_page(finished, tmp_path, monkeypatch):
    """Nothing in the report has to know it; runs that have not measured it are shown without it."""
    monkeypatch.setitem(METRICS, "ece_mass_15", replace(METRICS["ece_15"], name="ece_mass_15", title="ECE, equal mass"))
    monkeypatch.setitem(METRICS, "yet_to_come", replace(METRICS["nll"], name="yet_to_come", title="Yet to come"))
    evidence = Evidence.read(finished)
    made = {table.name: table for table in make_tables(evidence)}
    numbers = [one.value for one in evidence.numbers("small", "cigl", 0.9, "ece_mass_15", False).values()]
    table = made["ece_mass-small"]
    assert row(table, "CigL")[3].value == pytest.approx(np.mean(numbers))
    assert table.title.startswith("ECE, equal mass, small")
    assert any("Noise floor" in note for note in table.notes)
    assert "Δ ECE, equal mass" in made["differences-small"].columns
    assert "yet_to_come-small" not in made
    write_report([finished], tmp_path / "report.html")
    assert "<button type='button'>ECE, equal mass</button>" in (tmp_path / "report.html").read_text()
    assert "ece_mass_15_floor_temperature" in (tmp_path / "report" / "runs.csv").read_text()


def test_every_table_in_every_format(evidence):
    made = {name: kind.make(evidence, "small") for name, kind in kinds_of_tables().items()}
    assert [name for name, table in made.items() if not table.rows] == ["masks"]
    chosen = [table.name for table in make_tables(evidence)]
    assert chosen == [table.name for name, table in made.items() if name not in ("masks", "ece-change")]
    for table in made.values():
        assert all(len(r) == len(table.columns) for r in table.rows)
        for write in FORMATS.values():
            assert write(table).endswith("\n")


text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
entries = st.builds(Entry, text, st.one_of(st.none(), st.floats(-1e6, 1e6)), st.one_of(st.none(), st.floats(0, 9)), st.booleans())  # fmt: skip # noqa: E501


@settings(max_examples=40, deadline=None)
@given(text, st.lists(st.tuples(entries, entries), min_size=1, max_size=3))
@example("", [(Entry("a"), Entry("1")), (Entry("[ours]"), Entry("2")), (Entry("*"), Entry("3"))])
def test_whatever_is_in_a_table_it_stays_a_table(title, rows):
    table = Table("t", title, ("a|b", "50 %"), tuple(rows), (title,))
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {3}
    assert len(lines) == len(rows) + 2
    body = to_latex(table).split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert len(re.findall(r"(?<!\\)&", body)) == len(rows)
    assert body.count("{") - body.count(r"\{") == body.count("}") - body.count(r"\}")
    assert not re.search(r"(?<!\\)[%#_]", body)
    assert not re.search(r"\\\\\s*[\[*]", body)  # would be options of the end of a row
    read = list(csv.reader(io.StringIO(to_csv(table))))
    assert len({len(line) for line in read}) == 1
    assert len(read) == len(rows) + 1
