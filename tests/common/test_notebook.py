"""What a notebook shows: well-formed, escaped, the same numbers as print, and without matplotlib."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import cigl
from cigl.calibrate import regression_report, report, split_and_scale, under_shift


def parsed(shown: object) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")  # type: ignore[attr-defined]


def cells(root: ElementTree.Element) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in root.iter("tr")]


def one_report() -> cigl.calibrate.Report:
    return report(probabilities=[[0.9, 0.1]] * 100, labels=[0] * 70 + [1] * 30)


def test_a_report_shows_its_verdict_and_its_table() -> None:
    shown = one_report()
    root = parsed(shown)
    head, *rows = cells(root)
    assert root.findtext("p") == shown.verdict
    assert head == ["", "value", "low", "high", "noise floor"]
    assert [row[0] for row in rows] == list(shown.metrics)
    assert {row[0]: row[1] for row in rows}["accuracy"] == "70.00 %"
    for row in rows:
        assert " ".join(" ".join(row).split()) in " ".join(str(shown).split())


def test_a_comparison_shows_the_numbers_that_it_prints() -> None:
    shown = cigl.compare(one_report(), one_report())
    head, *rows = cells(parsed(shown))
    assert head[1:4] == ["a", "b", "a - b"]
    assert len(rows) == len(shown.differences)
    for row in rows:
        assert " ".join(" ".join(row).split()) in " ".join(str(shown).split())


class Odd(nn.Module):
    """A network whose layer has a name that is not for HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<b>&", nn.Linear(40, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(self.children())(x)


@pytest.fixture
def sparse() -> cigl.Sparsifier:
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return cigl.attach(model, optimizer, "rigl", sparsity=0.9, epochs=2, steps_per_epoch=200)


def test_a_sparsifier_shows_its_layers(sparse: cigl.Sparsifier) -> None:
    root = parsed(sparse)
    assert root.findtext("p") == ("Sparsifier rigl: step 0 of 400, 40 weights of 400 in 1 layer (90 % sparsity)")
    assert cells(root) == [["layer", "shape", "weights", "density"], ["<b>&.weight", "10x40", "40", "0.1000"]]


def test_a_summary_shows_what_it_prints(sparse: cigl.Sparsifier) -> None:
    summary = sparse.summary()
    root = parsed(summary)
    assert root.findtext("p") == summary.title
    assert [row[0] for row in cells(root)] == ["layer", "<b>&.weight", "total"]
    for row in cells(root):
        assert " ".join(row) in " ".join(str(summary).split())


def test_other_results_show_what_they_print() -> None:
    logits, labels = torch.randn(60, 3), torch.arange(60) % 3
    images = [(torch.rand(40, 1, 8, 8), torch.arange(40) % 3)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    for shown in (
        split_and_scale(logits=logits, labels=labels),
        regression_report(mean=torch.zeros(50), variance=torch.ones(50), targets=torch.randn(50)),
        under_shift(network, images, kinds="noise", severities=[1]),
    ):
        assert parsed(shown).findtext("pre") == str(shown)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from cigl.calibrate import report; "
        "report(probabilities=[[0.9, 0.1]] * 40, labels=[0] * 40)._repr_html_(); "
        "assert not {'matplotlib', 'IPython', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
