import struct

import pytest
from made_runs import a_study, make

from cigl.study.captions import turning_points
from cigl.study.catalogue import PLANS, SCALES, study
from cigl.study.contents import Contents, contents
from cigl.study.drawing import look
from cigl.study.evidence import Evidence
from cigl.study.figures import (
    FIGURES,
    SUFFIXES,
    make_figures,
    prepare_bars,
    prepare_lines,
    prepare_masks,
    prepare_polygons,
    prepare_reliability,
)
from cigl.study.statistics import mean


@pytest.fixture(scope="module")
def evidence(finished):
    return Evidence.read(finished)


@pytest.fixture(scope="module")
def calibrators(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrators")
    make(path, a_study("calibrators", methods=("rigl", "cigl", "rigl-mixup", "rigl-ls"), seeds=(0,)))
    return Evidence.read(path)


def test_lines_are_means_with_intervals(evidence):
    data = prepare_lines(evidence, "small")
    ece, accuracy = data["panels"]
    (line,) = (line for line in ece["lines"] if line["method"] == "cigl")
    assert line["sparsity"] == [0.8, 0.9, 0.95]
    wanted = mean(evidence.numbers("small", "cigl", 0.9, "ece_15", False))
    assert (line["mean"][1], line["low"][1], line["high"][1]) == (wanted.value, wanted.low, wanted.high)
    assert ece["floor"].keys() == {0.0, 0.8, 0.9, 0.95}
    assert accuracy["title"] == "Accuracy (%)"
    assert all(50 < value < 100 for line in accuracy["lines"] for value in line["mean"])


def test_bars_leave_out_the_dense_network(evidence):
    assert [line["method"] for line in prepare_bars(evidence, "small")["panels"][0]["lines"]] == ["rigl", "cigl"]


def test_polygons_have_rigl_with_each_calibrator(calibrators):
    panels = {panel["title"]: panel for panel in prepare_polygons(calibrators, "small")["panels"]}
    assert set(panels) == {"mixup", "temperature scaling", "label smoothing"}
    scaled = [mean(calibrators.numbers("small", "rigl", s, "ece_15", True)).value for s in (0.8, 0.9, 0.95)]
    assert panels["temperature scaling"]["other"] == scaled
    plain = [mean(calibrators.numbers("small", "cigl", s, "ece_15", False)).value for s in (0.8, 0.9, 0.95)]
    assert all(panel["cigl"] == plain for panel in panels.values())


def test_reliability_diagrams_of_dense_and_95_percent(evidence):
    assert list(prepare_reliability(evidence, "small")["panels"]) == [
        "Dense, 0 % sparse, seed 0", "RigL, 95 % sparse, seed 0"
    ]  # fmt: skip


def test_masks(tmp_path):
    make(tmp_path, a_study("mask-correlation", methods=("cigl",), sparsity=(0.0, 0.5), masks=5, reference="cigl"))
    evidence = Evidence.read(tmp_path)
    (line,) = prepare_masks(evidence, "small")["lines"]
    assert line["W"] == pytest.approx([89.5, 89.5])
    assert line["drop"] == pytest.approx([2.0, 7.0])
    (figure,) = make_figures(evidence, contents("mask-correlation"))
    assert "−2.00 at 0 %, −7.00 at 50 %" in figure.caption


def test_every_figure_is_drawn_in_both_formats(calibrators, evidence, tmp_path):
    figures = make_figures(evidence, Contents(figures=tuple(FIGURES)))
    made = {figure.name.removesuffix("-small"): figure for figure in figures}
    assert set(made) == set(FIGURES) - {"masks"}  # for which there are no runs
    made["polygons"] = make_figures(calibrators, Contents(figures=("polygons",)))[0]
    for name, figure in made.items():
        for suffix in SUFFIXES:
            figure.plot(tmp_path / (name + suffix))
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
        width, height = struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24])
        assert min(width, height) > 300
        assert figure.caption.endswith(".")


def test_captions_count(evidence):
    (figure,) = make_figures(evidence, Contents(figures=("sparsity",)))
    assert figure.caption.startswith("CigL's ECE is lower than RigL's at 3 of 3 sparsities, by ")
    assert "Lowest ECE: CigL at 80, 90, 95 %." in figure.caption


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2, 3], [0, 2]),
        ([1, 3, 2, 4], [0, 1, 2, 3]),
        ([1, 3, 2.95, 4], [0, 3]),  # a dip within the intervals
        ([3, 1, 1, 3], [0, 1, 3]),
        ([2, 2, 2], [0, 2]),
    ],
)
def test_turning_points(values, wanted):
    assert turning_points(values, [v - 0.1 for v in values], [v + 0.1 for v in values]) == wanted


@pytest.mark.parametrize("scale", SCALES)
def test_no_two_methods_of_a_study_look_the_same(scale):
    for name in set(PLANS) - {"imagenet"}:
        looks = [look(method) for method in study(name, scale).methods]
        assert len(looks) == len({each[:2] for each in looks})  # by colour and marker
        assert len(looks) == len({(each.color, each.line) for each in looks})  # octagons are much like hexagons
