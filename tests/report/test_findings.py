"""The words of verdicts: a loss of accuracy never looks like a win."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from made_runs import a_study, make

from cigl.report.evidence.comparisons import Contrast
from cigl.report.evidence.measurements import Evidence, Measured
from cigl.report.evidence.statistics import OverSeeds
from cigl.report.tables.catalogue import kinds_of_tables
from cigl.report.tables.entries import difference_entry
from cigl.report.tables.findings import against_reference

FLAT = np.zeros(1000)


def differing(value, clear):
    half = 0.5 * abs(value) if clear else 2 * abs(value)
    return OverSeeds(3, value, 0.0, 0.0, 0.0, value - half, value + half)


@pytest.mark.parametrize(("ece", "accuracy"), list(itertools.product((-1, 0, 1), repeat=2)))
def test_a_verdict_names_every_significant_change_and_no_other(ece, accuracy):
    changes = [differing(0.02 * (sign or 1), clear=sign != 0) for sign in (ece, accuracy)]
    compared = Contrast(0.9, dict(zip(("ece_15", "accuracy"), changes, strict=True)), 0.1)
    words = compared.verdict("RigL")
    assert ("better calibrated" in words, "worse calibrated" in words) == (ece < 0, ece > 0)
    assert ("more accurate" in words, "less accurate" in words) == (accuracy > 0, accuracy < 0)
    assert ("significant" in words) == (ece == 0 or accuracy == 0)
    assert "RigL" in words
    assert "RigL" not in compared.verdict()


def test_scores_that_got_worse_are_named():
    calm, worse, better = (differing(v, clear=v != 0.01) for v in (0.01, 0.02, -0.02))
    changes = {"ece_15": better, "accuracy": calm, "nll": worse, "brier": better}
    compared = Contrast(0.9, changes, -0.1)
    assert compared.worse == ("NLL",)
    assert replace(compared, changes=changes | {"nll": calm, "brier": worse}).worse == ("Brier score",)


def test_the_headline_has_the_scores_and_says_which_are_worse(finished_and_large):
    runs = []
    for run in finished_and_large.runs:
        if run.cell.method == "cigl":
            numbers = {k: {**found, "nll": Measured(9.0, FLAT)} for k, found in run.numbers.items()}
            run = replace(run, numbers=numbers)
        runs.append(run)
    found = against_reference(replace(finished_and_large, runs=runs), "small", "cigl")
    assert ", but its NLL is worse (ECE −" in found
    assert re.search(r", NLL \+8\.\d{3}, Brier score −0\.\d{3}; 3 seeds\)", found)


@pytest.mark.parametrize(
    ("metric", "value", "bold"),
    [("ece_15", -0.02, True), ("ece_15", 0.02, False), ("accuracy", -0.02, False), ("accuracy", 0.02, True)],
)
def test_only_what_is_better_is_bold(metric, value, bold):
    entry = difference_entry(differing(value, clear=True), metric)
    assert entry.bold == bold
    assert entry.text.endswith("worse") != bold
    unclear = difference_entry(differing(value, clear=False), metric)
    assert not unclear.bold
    assert not unclear.text.endswith("worse")


def with_accuracy(evidence, accuracy, method="cigl"):
    """The same study, but the method's accuracy is this in every run."""
    runs = []
    for run in evidence.runs:
        if run.cell.method == method:
            numbers = {scaled: {**found, "accuracy": Measured(accuracy, FLAT)} for scaled, found in run.numbers.items()}
            run = replace(run, numbers=numbers)
        runs.append(run)
    return replace(evidence, runs=runs)


@pytest.fixture(scope="module")
def finished_and_large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    make(path, a_study(sparsity=(0.8,), seeds=(0, 1, 2)), n=3000)
    return Evidence.read(path)


def test_a_lower_ece_that_costs_accuracy_is_no_win(finished_and_large):
    won, lost = (with_accuracy(finished_and_large, accuracy) for accuracy in (0.99, 0.3))
    assert against_reference(won, "small", "cigl").startswith(
        "At 80 % sparsity CigL is better calibrated and more accurate"
    )
    assert against_reference(lost, "small", "cigl").startswith(
        "At 80 % sparsity CigL is better calibrated but less accurate than RigL (ECE −"
    )
    for evidence, bold in ((won, True), (lost, False)):
        table = kinds_of_tables()["ece"].make(evidence, "small")
        entry = next(row for row in table.rows if row[0].text == "CigL")[-1]
        assert entry.bold == bold
        assert entry.text.endswith(" †") != bold
        assert any(note.startswith("†") for note in table.notes) != bold


def test_a_loss_that_few_seeds_leave_unclear_is_no_win_either(finished_and_large):
    """Ten points less on average, with seeds so far apart that it is not significant."""
    spread = {0: 0.4, 1: 0.0, 2: -0.1}
    runs = []
    for run in finished_and_large.runs:
        if run.cell.method == "cigl":
            rigl = next(x for x in finished_and_large.runs if x.cell.method == "rigl" and x.cell.seed == run.cell.seed)
            value = rigl.numbers[False]["accuracy"].value - spread[run.cell.seed]
            numbers = {k: {**found, "accuracy": Measured(value, FLAT)} for k, found in run.numbers.items()}
            run = replace(run, numbers=numbers)
        runs.append(run)
    unclear = replace(finished_and_large, runs=runs)
    assert "less accurate" not in against_reference(unclear, "small", "cigl")
    table = kinds_of_tables()["ece"].make(unclear, "small")
    entry = next(row for row in table.rows if row[0].text == "CigL")[-1]
    assert not entry.bold
    assert entry.text.endswith(" †")


def test_one_seed_and_no_significance_are_said(tmp_path):
    make(tmp_path, a_study(sparsity=(0.8,), seeds=(0,)), n=60)
    found = against_reference(Evidence.read(tmp_path), "small", "cigl")
    assert "1 seed, so for these networks only" in found
    assert "not significantly different from RigL in calibration or accuracy" in found
