import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from simulate import world

import cigl
from cigl import CiglError
from cigl.calibrate import prepare_reliability_diagram, prepare_shift_figure, report
from cigl.calibrate.reports.shift import Shift


def make(n=500, temperature=1.5, seed=0):
    logits, labels = world(n, temperature, seed=seed)
    return report(logits=logits, labels=labels, resamples=50)


def test_what_is_drawn_is_plain_data():
    one = make()
    shown = prepare_reliability_diagram(one)
    assert json.loads(json.dumps(shown)) == shown
    filled = [row for row in one.table if row.count]
    assert 0 < len(filled) < 15  # empty bins are left out
    assert [bar["count"] for bar in shown["bars"]] == [row.count for row in filled]
    error = sum(bar["count"] * abs(bar["confidence"] - bar["accuracy"]) for bar in shown["bars"]) / shown["n"]
    assert error == pytest.approx(one.ece)
    text = " ".join(shown["text"])
    for number in (one.ece, one.ece.low, one.ece.high, one.ece.floor):
        assert f"{number:.3f}" in text


def test_files(tmp_path):
    one, other = make(), make(30, seed=1)
    one.reliability_diagram(tmp_path / "one.svg")
    ET.parse(tmp_path / "one.svg")
    first = (tmp_path / "one.svg").read_bytes()
    one.reliability_diagram(tmp_path / "one.svg")
    assert (tmp_path / "one.svg").read_bytes() == first  # the same data, the same file
    cigl.reliability_diagrams({"dense": one, "sparse": other}, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
    cigl.reliability_diagrams({str(k): one for k in range(5)}, str(tmp_path / "five.PDF"))
    assert (tmp_path / "five.PDF").read_bytes().startswith(b"%PDF")
    assert len(list(tmp_path.iterdir())) == 3


def test_grey_alone(tmp_path):
    """Readable in black and white: no colour is used."""
    from matplotlib.image import imread

    make().reliability_diagram(tmp_path / "one.png")
    pixels = imread(tmp_path / "one.png")[..., :3]
    assert np.allclose(pixels[..., 0], pixels[..., 1], atol=0.01)
    assert np.allclose(pixels[..., 0], pixels[..., 2], atol=0.01)


def test_nothing_overlaps(tmp_path):
    """The corner's text ends above 1, where no bar reaches."""
    import matplotlib.figure

    seen = []
    original = matplotlib.figure.Figure.savefig

    def look(self, *args, **kwargs):
        self.canvas.draw()
        for axes in self.axes[::2]:
            box = axes.texts[0].get_window_extent().transformed(axes.transData.inverted())
            seen.append((box.x0, box.y0, box.x1))
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", look)
        cigl.reliability_diagrams({"a": make(), "b": make(30)}, tmp_path / "x.svg")
    assert len(seen) == 2
    assert all(x0 > 0 and y0 > 1 and x1 < 1 for x0, y0, x1 in seen)


def test_refusals(tmp_path):
    one = make(30)
    with pytest.raises(CiglError, match=r"use \.svg, \.png, \.pdf"):
        one.reliability_diagram(tmp_path / "one.jpeg")
    with pytest.raises(CiglError, match="no reports to draw"):
        cigl.reliability_diagrams({}, tmp_path / "one.svg")


def test_shift_figure_data():
    clean, worse = make(), make(temperature=3.0)
    shown = prepare_shift_figure(Shift({"noise": {0: clean, 3: worse}}))
    assert list(shown) == ["accuracy", "nll", "ece_15"]
    line = shown["ece_15"]["noise"]
    assert line["severity"] == [0, 3]
    assert line["value"] == [clean.ece, worse.ece]
    assert line["floor"] == [clean.ece.floor, worse.ece.floor]
    json.dumps(shown)


def test_names_are_not_formulas_and_long_ones_are_wrapped(tmp_path):
    one = make()
    cigl.reliability_diagrams({"a_b $x^": one, "long name of a run " * 5: one}, tmp_path / "two.svg")
    assert (tmp_path / "two.svg").stat().st_size > 0


def test_what_is_no_mapping(tmp_path):
    for bad in (make(), [make()], {"a": 3}):
        with pytest.raises(CiglError, match=r"pass \{name: report, \.\.\.\}"):
            cigl.reliability_diagrams(bad, tmp_path / "x.svg")
