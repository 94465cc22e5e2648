import json
import re
import struct
from dataclasses import asdict, replace

import pytest
from made_runs import METHODS, a_study, make

from cigl.calibrate import Report
from cigl.report.evidence.measurements import Evidence
from cigl.report.evidence.statistics import mean
from cigl.report.figures.catalogue import (
    FIGURES,
    SUFFIXES,
    chosen_for,
    make_figures,
    prepare_lines,
    prepare_masks,
    prepare_points,
    prepare_polygons,
    prepare_reliability,
)
from cigl.report.figures.interactive import At, interactive
from cigl.report.figures.styles import looks
from cigl.report.tables.findings import turning_points
from cigl.study.catalogue import EXPERIMENTS, SCALES, study


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
    ece, accuracy = data.panels
    (line,) = (line for line in ece.lines if line.method == "cigl")
    assert line.sparsity == data.sparsity == (0.8, 0.9, 0.95)
    assert data.bold == ("rigl", "cigl")
    wanted = mean(evidence.numbers("small", "cigl", 0.9, "ece_15", False))
    assert (line.mean[1], line.low[1], line.high[1]) == (wanted.value, wanted.low, wanted.high)
    assert ece.floor.keys() == {0.0, 0.8, 0.9, 0.95}
    assert line.seeds[1] == {
        seed: one.value for seed, one in evidence.numbers("small", "cigl", 0.9, "ece_15", False).items()
    }
    assert (ece.better, accuracy.better) == ("lower", "higher")
    assert accuracy.floor == {}
    assert accuracy.title == "Accuracy (%)"
    assert all(50 < value < 100 for line in accuracy.lines for value in line.mean)


def test_parts_leave_out_the_dense_network(evidence):
    parts = prepare_points(evidence, "small", parts=("rigl", "cigl"))
    assert [line.method for line in parts.panels[0].lines] == ["rigl", "cigl"]
    assert parts.sparsity == (0.8, 0.9, 0.95)
    assert prepare_points(evidence, "small").sparsity == (0.0, 0.8, 0.9, 0.95)


def test_lines_become_points_while_one_sparsity_is_finished(tmp_path):
    """A line through one point would be drawn across the figure, as if it held everywhere."""
    make(tmp_path, a_study(seeds=(0,)), but=(2, 3, 5, 6))
    figures = make_figures(Evidence.read(tmp_path))
    assert [figure.name for figure in figures] == ["points-small", "points-temperature-small"]
    drawn = interactive(figures[0].chart, At("here"))
    assert drawn.count('class="point"') == 6


def test_polygons_have_rigl_with_each_calibrator(calibrators):
    panels = {panel.title: panel for panel in prepare_polygons(calibrators, "small").panels}
    assert set(panels) == {"mixup", "temperature scaling", "label smoothing"}
    scaled = [mean(calibrators.numbers("small", "rigl", s, "ece_15", True)).value for s in (0.8, 0.9, 0.95)]
    assert panels["temperature scaling"].other.mean == tuple(scaled)
    plain = [mean(calibrators.numbers("small", "cigl", s, "ece_15", False)).value for s in (0.8, 0.9, 0.95)]
    assert all(panel.cigl.mean == tuple(plain) for panel in panels.values())


def test_reliability_diagrams_of_dense_and_95_percent(evidence):
    panels = prepare_reliability(evidence, "small").panels
    assert [panel.title for panel in panels] == ["Dense, 0 % sparse, seed 0", "RigL, 95 % sparse, seed 0"]
    report = Report.from_json(panels[1].report)
    assert (panels[1].ece, panels[1].gap) == (float(report.ece_15), float(report.gap))


def test_masks(tmp_path):
    make(tmp_path, a_study("mask-correlation", methods=("cigl",), sparsity=(0.0, 0.5), masks=5, reference="cigl"))
    evidence = Evidence.read(tmp_path)
    accuracy, drop = prepare_masks(evidence, "small").panels
    whole, masked = accuracy.lines
    assert whole.mean == pytest.approx((89.5, 89.5))
    assert masked.mean == pytest.approx((87.5, 82.5))
    assert whole.high[0] - whole.mean[0] == pytest.approx(50**0.5 / 10)  # 90 and 89
    assert drop.lines[0].mean == pytest.approx((2.0, 7.0))
    (figure,) = make_figures(evidence)
    assert "−2.00 at 0 %, −7.00 at 50 %" in figure.caption


def test_every_figure_is_drawn_in_both_formats(calibrators, evidence, tmp_path):
    figures = make_figures(evidence, FIGURES)
    made = {figure.name.removesuffix("-small"): figure for figure in figures}
    assert set(made) == set(FIGURES) - {"masks"}  # for which there are no runs
    made["polygons"] = make_figures(calibrators, ["polygons"])[0]
    for name, figure in made.items():
        for suffix in SUFFIXES:
            figure.plot(tmp_path / (name + suffix))
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
        width, height = struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24])
        assert min(width, height) > 300
        assert figure.caption.endswith(".")


def test_captions_count(evidence):
    (figure,) = make_figures(evidence, ["sparsity"])
    assert figure.caption.startswith("At ")
    assert "CigL is better calibrated than RigL" in figure.caption
    assert "Lowest ECE: CigL at 80, 90 and 95 % (" in figure.caption


LINES = ["sparsity", "sparsity-temperature"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    {
        "main": LINES,
        "dropout": LINES,
        "calibrators": ["polygons", *LINES],
        "ablation": ["ablation", *LINES],
        "set": LINES,
        "sup-tickets": LINES,
        "wma-effect": ["ablation", *LINES],
        "double-descent": ["double-descent", "reliability"],
        "mask-correlation": ["masks"],
        "imagenet": ["points", "points-temperature"],
    }.items(),
)
def test_figures_of_the_papers_experiments(name, wanted):
    for scale in EXPERIMENTS[name].scales:
        assert chosen_for(study(name, scale)) == wanted


def test_figures_follow_from_what_a_study_is_and_not_from_its_names():
    own = a_study("calibrators", methods=("rigl", "cigl"), sparsity=(0.8,))
    assert chosen_for(own) == ["points", "points-temperature"]
    other = {"cigl": {"method": "set"}, "rigl-ls": {"method": "rigl", "lr": 0.5}, "rigl-mixup": METHODS["rigl"]}
    assert chosen_for(replace(own, methods=other, reference="cigl", sparsity=(0.8, 0.9, 0.95))) == LINES
    renamed = {"ours": METHODS["cigl"], "theirs": METHODS["rigl"], "smooth": METHODS["rigl-ls"]}
    assert chosen_for(replace(own, methods=renamed, reference="theirs", sparsity=(0.8, 0.9, 0.95))) == [
        "polygons",
        *LINES,
    ]


def test_captions_and_polygons_find_methods_under_any_name(tmp_path):
    methods = {"ours": METHODS["cigl"], "theirs": METHODS["rigl"], "smooth": METHODS["rigl-ls"]}
    make(tmp_path, replace(a_study(seeds=(0,)), methods=methods, reference="theirs", labels={"ours": "Ours"}))
    polygons, lines, _ = make_figures(Evidence.read(tmp_path))
    assert [panel.other.label for panel in polygons.data.panels] == [
        "theirs + temperature scaling",
        "theirs + label smoothing",
    ]
    assert re.match(r"Ours's ECE is .* that of theirs \+ temperature scaling at ", polygons.caption)
    assert re.search(r"Ours is .* (than|from) theirs", lines.caption)
    assert lines.data.bold == ("theirs", "ours")


def test_data_of_a_figure_is_plain(evidence, calibrators):
    figures = [*make_figures(evidence), *make_figures(calibrators)]
    assert figures
    for figure in figures:
        assert json.loads(json.dumps(asdict(figure.data)))


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
def test_no_two_methods_of_a_study_look_the_same_without_colour(scale):
    for name in [name for name, experiment in EXPERIMENTS.items() if scale in experiment.scales]:
        methods = list(study(name, scale).methods)
        found = looks(methods)
        assert list(found) != []
        assert len({(look.marker, look.filled) for look in found.values()}) == len(methods)


@pytest.mark.parametrize("number", [3, 22, 60])
def test_methods_of_a_users_study_look_different_without_colour(number):
    found = looks(["rigl", "cigl", *(f"mine {i}" for i in range(number - 2))])
    assert len({look.without_color for look in found.values()}) == number
    if number <= 22:
        assert len({(look.marker, look.filled) for look in found.values()}) == number
