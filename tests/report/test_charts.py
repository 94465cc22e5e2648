"""The colours of the page's figures can be seen, in light and in dark, and legends are distinct without them."""

import re

import pytest

from cigl.report.evidence.figure_data import Line, LinesData, Panel
from cigl.report.figures.drawing import lines
from cigl.report.figures.interactive import At, interactive
from cigl.report.figures.styles import COLORS
from cigl.report.page.layout import asset


def variables():
    """Those of the light scheme, and those of the dark one."""
    text = asset("page.css") + asset("charts.css")
    blocks = re.findall(r":root \{(.*?)\}", text, re.S)
    dark = re.findall(r"prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", text, re.S)
    light = [block for block in blocks if block not in dark]
    return {
        name: dict(re.findall(r"--(\w+): (#[0-9a-f]+)", " ".join(found)))
        for name, found in (("light", light), ("dark", dark))
    }


def luminance(color):
    color = color.lstrip("#")
    color = "".join(2 * one for one in color) if len(color) == 3 else color
    parts = [int(color[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    """As WCAG 2.2 defines it."""
    low, high = sorted(map(luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme):
    found = variables()[scheme]
    assert set(COLORS) <= set(found)
    assert all(contrast(found[color], found["back"]) >= 3 for color in COLORS)
    assert all(contrast(found[text], found["back"]) >= 4.5 for text in ("ink", "soft", "link"))
    assert all(contrast(found[text], found["shade"]) >= 4.5 for text in ("ink", "soft"))


def line(method, height, sparsity):
    mean, low, high = (tuple(height + 0.01 * i + end for i in range(len(sparsity))) for end in (0, -0.02, 0.02))
    return Line(method, method, sparsity, mean, low, high, ({0: height},) * len(sparsity))


def drawn(*shown):
    """The panel, and the legend."""
    data = LinesData((Panel("ECE", shown, {}),), (0.8, 0.9), ())
    return interactive(lines(data), At("here")).split('<ul class="legend"')


def test_samples_in_the_legend_differ_without_colour():
    methods = ("rigl", "set", "cigl", "mine", "other")
    _, legend = drawn(*(line(method, 0.1 * n, (0.8, 0.9)) for n, method in enumerate(methods)))
    samples = [re.sub(r"var\(--(?!back)\w+\)", "", one) for one in re.findall(r"<svg.*?</svg>", legend, re.S)]
    samples = [re.sub(r'(?:id="|#)\w+', "", sample) for sample in samples]
    assert len(samples) == len(set(samples)) == 5


def test_a_method_at_one_of_several_sparsities_is_a_point():
    rigl = line("rigl", 0.1, (0.8, 0.9))
    panel, _ = drawn(rigl, line("cigl", 0.2, (0.9,)))
    assert strokes(panel, "red") == 1  # its interval
    panel, _ = drawn(rigl, line("dense", 0.2, (0.0,)))
    assert '<path d="M' in panel
    assert "stroke-dasharray" in panel  # the dense network is a level
    assert panel.count('class="point"') == 3


def strokes(panel, color):
    """Paths of that colour that are not markers."""
    return len(re.findall(rf'<path d="[^"]*"[^>]* style="[^"]*stroke: var\(--{color}\)', panel)) - len(
        re.findall(rf'<path id="[^"]*" d="[^"]*" style="[^"]*stroke: var\(--{color}\)', panel)
    )


def test_points_are_where_they_are_drawn():
    panel, _ = drawn(line("rigl", 0.1, (0.8, 0.9)))
    marks = re.findall(r'<use href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: var\(--blue\)', panel)
    points = re.findall(r'class="point" data-x="([\d.]+)" data-y="([\d.]+)"', panel)
    assert len(points) == 2
    for mark, point in zip(marks, points, strict=True):
        assert [float(one) for one in point] == pytest.approx([float(one) for one in mark], abs=0.1)
