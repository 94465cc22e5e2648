import csv
import io
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import a_study, make

from cigl.study.contents import Contents, contents
from cigl.study.evidence import Evidence
from cigl.study.findings import relative
from cigl.study.tables import FORMATS, NOTHING, Entry, Table, to_csv, to_latex, to_markdown
from cigl.study.tabulate import TABLES, tabulate


@pytest.fixture(scope="module")
def evidence(finished):
    return Evidence.read(finished)


def row(table, label, *more):
    """By what stands in the first columns."""
    wanted = (label, *more)
    return next(r for r in table.rows if tuple(entry.text for entry in r[: len(wanted)]) == wanted)


def test_as_the_paper_prints_it(evidence):
    table = TABLES["ece"](evidence, "small", contents("main"))
    assert table.columns[:4] == ("Method", "0 %", "80 %", "paper 80 %")
    numbers = [one.value for one in evidence.numbers("small", "cigl", 0.8, "ece_15", False).values()]
    entry = row(table, "CigL")[2]
    assert entry.value == pytest.approx(np.mean(numbers))
    assert entry.spread == pytest.approx(np.std(numbers, ddof=1))
    assert entry.text == f"{np.mean(numbers):.4f} ± {np.std(numbers, ddof=1):.4f}"
    assert row(table, "CigL")[3].text == "0.0356 ± 0.001"  # CIFAR-10, ResNet-50, 80 %
    assert row(table, "Dense")[2].text == NOTHING
    assert any("CIFAR-10, ResNet-50, another network" in note for note in table.notes)


def test_bold_where_the_ece_falls_by_15_percent(evidence):
    table = TABLES["ece"](evidence, "small", contents("main"))
    for label, method in (("RigL", "rigl"), ("CigL", "cigl")):
        for column, sparsity in ((2, 0.8), (4, 0.9), (6, 0.95)):
            fallen = relative(evidence, "small", method, sparsity) <= -0.15
            assert row(table, label)[column].bold == fallen
    assert any(entry.bold for entry in row(table, "CigL"))


def test_accuracy_is_in_percent(evidence):
    table = TABLES["accuracy"](evidence, "small", contents("main"))
    numbers = [one.value for one in evidence.numbers("small", "rigl", 0.95, "accuracy", False).values()]
    assert row(table, "RigL")[6].value == pytest.approx(100 * np.mean(numbers))
    assert row(table, "RigL")[7].text == "93.19 ± 0.198"


def test_after_temperature_scaling(evidence):
    table = TABLES["ece-temperature"](evidence, "small", contents("main"))
    numbers = [one.value for one in evidence.numbers("small", "rigl", 0.9, "ece_15", True).values()]
    assert row(table, "RigL")[table.columns.index("90 %")].value == pytest.approx(np.mean(numbers))
    assert not any(column.startswith("paper") for column in table.columns)


def test_differences(evidence):
    table = TABLES["differences"](evidence, "small", contents("main"))
    assert all(r[0].text != "RigL" for r in table.rows)
    found = row(table, "CigL", "90 %")
    ours, theirs = (evidence.numbers("small", m, 0.9, "ece_15", False) for m in ("cigl", "rigl"))
    gap = np.mean([ours[s].value - theirs[s].value for s in (0, 1)])
    assert found[3].value == pytest.approx(gap)
    assert found[4].value == pytest.approx(100 * gap / np.mean([theirs[s].value for s in (0, 1)]))
    low, high = (float(end.replace("−", "-")) for end in re.findall(r"[+−][\d.]+", found[3].text)[1:])
    assert low <= found[3].value <= high
    assert found[3].bold == (low > 0 or high < 0)


def test_intervals_show_both_parts(evidence):
    table = TABLES["intervals-ece"](evidence, "small", contents("main"))
    found = dict(zip(table.columns, row(table, "CigL", "80 %"), strict=True))
    assert found["Seeds"].value == 2
    assert found["Error: seeds"].value > 0
    assert found["Error: test points"].value > 0
    assert found["95 % low"].value <= found["Mean"].value <= found["95 % high"].value
    assert found["Noise floor"].value > 0


def test_cost_is_that_of_the_results(evidence):
    found = row(TABLES["cost"](evidence, "small", contents("main")), "CigL", "80 %")
    assert [entry.value for entry in found[2:]] == pytest.approx([0.3, 0.2, 11.5])


def test_ece_changes_beside_the_papers_with_its_slip(tmp_path):
    setting = {"preset": "cifar100-resnet50", "validation": 0.1, "temperature": "holdout"}
    make(tmp_path, a_study("sup-tickets", methods=("rigl", "cigl"), sparsity=(0.8,), settings={"paper": setting}))
    table = TABLES["ece-change"](Evidence.read(tmp_path), "paper", contents("sup-tickets"))
    assert row(table, "CigL")[2].text == "−0.0141"
    assert any("repeats its differences of WRN-22-2" in note for note in table.notes)
    assert any("the same network and data" in note for note in table.notes)
    assert len(table.rows) == 1  # the reference has no change against itself


def test_the_set_table_with_its_slip(tmp_path):
    setting = {"preset": "cifar10-resnet50", "validation": 0.1, "temperature": "holdout"}
    study = a_study("set", methods=("rigl",), sparsity=(0.5,), settings={"paper": setting})
    study = type(study)(**(vars(study) | {"methods": {"set": {"method": "set"}}, "reference": "set"}))
    make(tmp_path, study)
    table = TABLES["ece"](Evidence.read(tmp_path), "paper", contents("set"))
    assert [entry.text for entry in table.rows[0]][2] == "0.0429"
    assert any("labels this row CIFAR-100" in note for note in table.notes)


def test_masks(tmp_path):
    make(tmp_path, a_study("mask-correlation", methods=("cigl",), sparsity=(0.5,), masks=5, reference="cigl"))
    table = TABLES["masks"](Evidence.read(tmp_path), "small", contents("mask-correlation"))
    assert [entry.value for entry in table.rows[0][2:]] == pytest.approx([89.5, 82.5, 7.0])


def test_every_table_in_every_format(evidence):
    made = tabulate(evidence, Contents(tables=tuple(TABLES)))
    assert {table.name for table in made} == {f"{name}-small" for name in TABLES if name != "masks"}
    for table in made:
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
