"""The figures of the page: HTML with SVG inside that follows the colour scheme, fits a phone, and whose points tell
their numbers to a mouse, a finger or the arrow keys (assets/charts.js). ``drawing`` draws the same data for documents.

Every panel is an SVG of its own, so that panels stand side by side where there is room, and otherwise one below the
other. Colours are classes, and assets/charts.css gives them a value for light and for dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cigl.common.text import percent
from cigl.report.evidence.figure_data import Line, LinesData, MasksData, Panel, PolygonsData, place
from cigl.report.figures.styles import Look, looks
from cigl.report.figures.svg import Scale, element, label, marker, padded, path, stroke, text, ticks

WIDTH, HEIGHT = 380, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 44  # margins
_ROW, _CHARACTER = 24, 7.4  # the height of a row of points, the width of a letter
_LONGEST = 20  # letters of a row's name


@dataclass(frozen=True)
class At:
    """Where a figure stands on the page: the start of its ids, and the link to the runs behind a point."""

    name: str
    runs: Callable[[str, float], str] = lambda method, sparsity: ""


def panels(drawn: Iterable[tuple[str, str, str]], at: At, key: str = "") -> str:
    """Side by side or below each other, each (title, what is better, content of the SVG with its size)."""
    parts = []
    for number, (title, aside, svg) in enumerate(drawn):
        name = text(f"{at.name}--panel-{number}")
        note = f' <span class="aside">{text(aside)}</span>' if aside else ""
        parts.append(
            f'<div class="panel"><p class="panel-title" id="{name}">{text(title)}{note}</p>'
            f'{svg.replace("<svg", f"""<svg aria-labelledby="{name}" """, 1)}</div>'
        )
    return f'<div class="chart"><div class="panels">{"".join(parts)}</div>{key}</div>'


def svg(*inside: str, height: float = HEIGHT) -> str:
    size = f"0 0 {WIDTH} {height:.5g}"
    return element("svg", *inside, viewBox=size, role="group", tabindex="0", class_="plot")


def point(tip: str, *inside: str, class_: str = "", runs: str = "", x: float, y: float) -> str:
    """Something that tells its numbers; where there is no script, the browser shows its title."""
    more = {"data_runs": runs} if runs else {}
    given = {"class_": f"point {class_}".strip(), "data_x": x, "data_y": y, **more}
    return element("g", element("title", text(tip)), *inside, **given)


def lines(data: LinesData, at: At) -> str:
    """ECE and another metric by sparsity."""
    styles = looks(line.method for line in data.panels[0].lines)
    drawn = [(panel.title, _better(panel), _line_panel(panel, data, styles, at)) for panel in data.panels]
    return panels(drawn, at, _legend(data.panels[0].lines, styles, any(panel.floor for panel in data.panels)))


def polygons(data: PolygonsData, at: At) -> str:
    """On the page as lines, which are read more easily than the paper's polygons: a panel per calibrator."""
    styles = {"cigl": looks(["cigl"])["cigl"], "other": looks(["rigl"])["rigl"]}
    drawn = []
    for polygon in data.panels:
        panel = Panel("ECE", (polygon.other, polygon.cigl), {})
        shown = {polygon.cigl.method: styles["cigl"], polygon.other.method: styles["other"]}
        own = LinesData((panel,), polygon.sparsity, tuple(shown))
        drawn.append((f"ECE, {polygon.title}", _better(panel), _line_panel(panel, own, shown, at)))
    named = [(styles["cigl"], data.panels[0].cigl.label), (styles["other"], "RigL with the calibrator")]
    return panels(drawn, at, _key(named))


def masks(data: MasksData, at: At) -> str:
    names = [name for line in data.lines for name in (line.method, f"{line.method} Z*W")]
    styles = looks(names)
    accuracy: list[Line] = []
    drops: list[Line] = []
    for line in data.lines:
        for target, what, own, values in (
            (accuracy, "W", line.method, line.whole),
            (accuracy, "Z*W", f"{line.method} Z*W", line.masked),
            (drops, "drop", line.method, line.drop),
        ):
            low, high = (tuple(m + sign * sd for m, sd in zip(values.mean, values.sd, strict=True)) for sign in (-1, 1))
            target.append(Line(own, f"{line.label}, {what}", line.sparsity, values.mean, low, high, values.seeds))
    every = tuple(sorted({s for line in data.lines for s in line.sparsity}))
    spread = "± 1 standard deviation over seeds"
    shown = [
        Panel("Accuracy (%)", tuple(accuracy), {}, "higher", 2, spread),
        Panel("Drop from W to Z*W (points)", tuple(drops), {}, "lower", 2, spread),
    ]
    whole = LinesData(tuple(shown), every, ())
    drawn = [(panel.title, _better(panel), _line_panel(panel, whole, styles, at)) for panel in shown]
    return panels(drawn, at, _legend(accuracy, styles, False))


def _better(panel: Panel) -> str:
    return f"{panel.better} is better"


def _line_panel(panel: Panel, data: LinesData, styles: Mapping[str, Look], at: At) -> str:
    shown = sorted({place(s) for s in data.sparsity}) or [0.0]
    width = (shown[-1] - shown[0]) or 1.0
    across = Scale(shown[0] - 0.05 * width, shown[-1] + 0.05 * width, _LEFT, WIDTH - _RIGHT)
    ends = [value for line in panel.lines for value in (*line.low, *line.high)]
    low, high = padded([*ends, *panel.floor.values()], panel.from_zero and min(ends) >= 0)
    up = Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(up), _sparsity_axis(across, data.sparsity)]
    if floor := [(across(place(s)), up(value)) for s, value in panel.floor.items() if s in data.sparsity]:
        parts.append(element("path", d=path(floor), class_="floor"))
    # Bold lines last, so that they lie on top.
    for number, line in sorted(enumerate(panel.lines), key=lambda one: one[1].method in data.bold):
        aside = 0.0 if line.method in data.bold else 3.2 * (number - len(panel.lines) / 2)
        parts.append(_line(line, panel, data, styles[line.method], (across, up, aside), at))
    return svg(*parts)


def _line(line: Line, panel: Panel, data: LinesData, style: Look, to: tuple[Scale, Scale, float], at: At) -> str:
    """A method that has no sparsity of the others (the dense network) is a level across the panel."""
    across, up, aside = to
    bold, level = line.method in data.bold, not set(line.sparsity) & set(data.sparsity)
    xs = [across.start + 8 if level else across(place(s)) + aside for s in line.sparsity]
    places = list(zip(xs, map(up, line.mean), strict=True))
    parts = []
    if level:
        parts.append(stroke(style, [(across.start, places[0][1]), (across.end, places[0][1])], 1.2))
    elif len(places) > 1:
        if bold:
            band = [*zip(xs, map(up, line.high), strict=True)]
            band += reversed([*zip(xs, map(up, line.low), strict=True)])
            parts.append(element("path", d=path(band, closed=True), class_="band"))
        parts.append(stroke(style, places, 2.2 if bold else 1.4))
    for i, (x, y) in enumerate(places):
        drawn = [marker(style, x, y)]
        if not bold or len(places) == 1:  # where there is no band
            bar = path([(x, up(line.low[i])), (x, up(line.high[i]))])
            drawn.insert(0, element("path", d=bar, class_="whisker"))
        runs = at.runs(line.method, line.sparsity[i])
        parts.append(point(tip(line, i, panel), *drawn, runs=runs, x=x, y=y))
    return element("g", *parts, class_=f"c-{style.color}")


def tip(line: Line, i: int, panel: Panel) -> str:
    """What a point tells: its method and sparsity, mean, interval, noise floor, and every seed."""
    shown = f"{{:.{panel.decimals}f}}"
    ends = f"{shown.format(line.low[i])} to {shown.format(line.high[i])}".replace("-", "−")
    rows = [f"{line.label}, {percent(line.sparsity[i])} sparse"]
    rows.append(f"{panel.title}: {shown.format(line.mean[i]).replace('-', '−')} ({panel.spread}: {ends})")
    if line.sparsity[i] in panel.floor:
        rows.append(f"noise floor: {shown.format(panel.floor[line.sparsity[i]])}")
    seeds = ", ".join(f"{seed}: {shown.format(value)}" for seed, value in line.seeds[i].items())
    rows.append(f"by seed: {seeds}".replace("-", "−"))
    return "\n".join(rows)


def rows(data: LinesData, at: At) -> str:
    """One or two sparsities are no line: a row per method with its point and interval, named beside it."""
    styles = looks(line.method for line in data.panels[0].lines)
    drawn = [(panel.title, _better(panel), _row_panel(panel, data.sparsity, styles, at)) for panel in data.panels]
    floor = any(panel.floor for panel in data.panels)
    return panels(drawn, at, _key([], floor) if floor else "")


def _row_panel(panel: Panel, sparsities: Sequence[float], styles: Mapping[str, Look], at: At) -> str:
    cells = [(s, line, line.sparsity.index(s)) for s in sparsities for line in panel.lines if s in line.sparsity]
    heads = len(sparsities) > 1
    names = max((min(len(line.label), _LONGEST) for line in panel.lines), default=0)
    bottom = _TOP + _ROW * (len(cells) + (len({s for s, *_ in cells}) if heads else 0))
    ends = [value for _, line, i in cells for value in (line.low[i], line.high[i])]
    low, high = padded([*ends, *panel.floor.values()], panel.from_zero and min(ends) >= 0)
    across = Scale(low, high, names * _CHARACTER + 12, WIDTH - 16)
    parts, y, before = [], _TOP + _ROW / 2, None
    for value in ticks(low, high, 4):
        x = across(value)
        parts.append(element("path", d=path([(x, _TOP), (x, bottom)]), class_="grid"))
        parts.append(label(x, bottom + 18, f"{value:.6g}"))
    for sparsity, line, i in cells:
        if heads and sparsity != before:
            parts.append(label(2, y + 5, f"{percent(sparsity)} sparse", "start", "head"))
            y += _ROW
        if sparsity != before and sparsity in panel.floor:
            x, tall = across(panel.floor[sparsity]), _ROW * sum(one == sparsity for one, *_ in cells)
            parts.append(element("path", d=path([(x, y - _ROW / 2), (x, y - _ROW / 2 + tall)]), class_="floor"))
        before = sparsity
        style, x = styles[line.method], across(line.mean[i])
        name = line.label if len(line.label) <= _LONGEST else line.label[: _LONGEST - 1] + "…"
        bar = element("path", d=path([(across(line.low[i]), y), (across(line.high[i]), y)]), class_="whisker")
        parts.append(label(2, y + 5, name, "start", "name"))
        shown = point(tip(line, i, panel), bar, marker(style, x, y), runs=at.runs(line.method, sparsity), x=x, y=y)
        parts.append(element("g", shown, class_=f"c-{style.color}"))
        y += _ROW
    return svg(*parts, height=bottom + 28)


def _grid(up: Scale) -> str:
    parts = []
    for value in ticks(up.low, up.high):
        y = up(value)
        parts.append(element("path", d=path([(_LEFT, y), (WIDTH - _RIGHT, y)]), class_="grid"))
        parts.append(label(_LEFT - 6, y + 4.5, f"{value:.6g}".replace("-", "−"), "end"))
    return "".join(parts)


def _sparsity_axis(across: Scale, sparsities: Sequence[float]) -> str:
    """A tick per sparsity; where two labels would collide, the later one stays."""
    bottom = HEIGHT - _BOTTOM
    parts = [element("path", d=path([(_LEFT, bottom), (WIDTH - _RIGHT, bottom)]), class_="axis")]
    free = float("inf")
    for sparsity in reversed(sparsities):
        x = across(place(sparsity))
        parts.append(element("path", d=path([(x, bottom), (x, bottom + 4)]), class_="axis"))
        if x < free:
            parts.append(label(x, bottom + 18, f"{100 * sparsity:.6g}"))
            free = x - 34
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return "".join([*parts, label(middle, HEIGHT - 6, "sparsity (%)")])


def _legend(shown: Sequence[Line], styles: Mapping[str, Look], floor: bool) -> str:
    return _key([(styles[line.method], line.label) for line in shown], floor)


def _key(named: Sequence[tuple[Look, str]], floor: bool = False) -> str:
    """What the lines are, below the panels: a sample of each with its name."""
    entries = []
    for style, name in named:
        sample = stroke(style, [(1, 8), (39, 8)], 1.8) + marker(style, 20, 8, 4.2)
        entries.append((f"c-{style.color}", sample, name))
    if floor:
        line = element("path", d="M1 8L39 8", class_="floor")
        entries.append(("", line, "noise floor: what a perfectly calibrated network would show"))
    items = (
        f'<li><svg viewBox="0 0 40 16" width="40" height="16" aria-hidden="true" class="{color}">{sample}</svg>'
        f"<span>{text(name)}</span></li>"
        for color, sample, name in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
