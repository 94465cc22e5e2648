"""The report as one HTML file that needs no files beside it and no network: its policy lets nothing be fetched."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

from cigl.common.text import count, percent
from cigl.report.evidence.measurements import Evidence, Run
from cigl.report.evidence.metrics import lookup, tabulated
from cigl.report.evidence.recognise import relation_to_paper
from cigl.report.figures.catalogue import Figure
from cigl.report.figures.interactive import At, interactive
from cigl.report.tables.formats import NOTHING, Entry, Table

_READING = (
    "ECE, the expected calibration error, is the mean distance between a network's confidence and its accuracy: 0.05 "
    "means 5 points; its noise floor is what a perfectly calibrated network would show. Significant means that the "
    "95 % interval of the paired difference excludes 0."
)
ENOUGH_SEEDS = 3  # to speak of a spread between them
_HINT = (
    "Hover over or tap a point for its numbers and seeds; with the keyboard, go to a figure with Tab and through its "
    "points with the arrow keys."
)


@dataclass(frozen=True)
class Section:
    """One study on the page."""

    evidence: Evidence
    tables: Sequence[Table]
    figures: Sequence[Figure]
    name: str  # unique on the page

    @property
    def lead(self) -> Figure | None:
        return self.figures[0] if self.figures else None


def page(title: str, made: str, sections: Sequence[Section], downloads: Mapping[str, bytes]) -> str:
    """The whole page, the findings first; ``downloads`` are files by name, kept inside it."""
    first = sections[0]
    parts = ["<header>", f"<h1>{escape(title)}</h1>", '<nav aria-label="Contents">', "<details>"]
    parts += ["<summary>Contents</summary>", _contents(sections), "</details>", "</nav>"]
    parts += [_opening(section, len(sections) > 1) for section in sections]
    if first.lead is not None:
        parts += [_figure(first, first.lead, first.lead.note), f'<p class="hint">{_HINT}</p>']
    parts += [f'<p class="reading">{_READING}</p>', "</header>", "<main>"]
    parts += [_section(section, [one for one in section.figures if one is not first.lead]) for section in sections]
    parts += ["</main>", f'<footer><p>{escape(made)}</p><p class="downloads">{_downloads(downloads)}</p></footer>']
    return document(escape(title), "\n".join(parts))


def _opening(section: Section, named: bool) -> str:
    """What its first figure shows, in words; before that, how much is still to come, and then what few seeds mean."""
    evidence, study = section.evidence, section.evidence.study
    left = len(evidence.missing) + len(evidence.failed) + len(evidence.damaged)
    sentences = []
    if left:
        total = len(evidence.runs) + left
        sentences.append(f"Preliminary: {len(evidence.runs)} of {count(total, 'run')} are finished.")
    several = len(evidence.settings) > 1
    for figure in section.figures:
        if section.lead is not None and figure.kind == section.lead.kind:
            sentences += [f"{figure.setting}: {sentence}" if several else sentence for sentence in figure.finding]
    sentences += _caution(evidence)
    name = f'<a href="#{section.name}">{escape(study.name)}</a>. ' if named else ""
    about = f"<p>{name}{escape(_sentence(study.about))}</p>" if name or study.about else ""
    return f'<div class="finding">{about}<p>{escape(" ".join(dict.fromkeys(sentences)))}</p></div>'


def _caution(evidence: Evidence) -> list[str]:
    """Two seeds give an interval, but hardly one to build on."""
    most = max(len(runs) for _, runs in _groups(evidence))
    if most >= ENOUGH_SEEDS:
        return []
    return [
        f"Caution: {count(most, 'seed')} per method can't show how much seeds differ; take “significant” as "
        f"provisional until there are at least {ENOUGH_SEEDS}."
    ]


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _downloads(downloads: Mapping[str, bytes]) -> str:
    kinds = {"csv": "text/csv", "json": "application/json"}
    links = (
        f'<a download="{escape(name)}" href="{_data(kinds[name.rsplit(".", 1)[1]], content)}">{escape(name)}</a>'
        for name, content in downloads.items()
    )
    return "The data: " + ", ".join(links) + "."


def _contents(sections: Sequence[Section]) -> str:
    lines = ["<ul>"]
    for section in sections:
        lines.append(f'<li><a href="#{section.name}">{escape(section.evidence.study.name)}</a><ul>')
        parts: list[Figure | Table] = [*section.figures, *section.tables]
        settings = section.evidence.settings
        every = f", {section.evidence.title(settings[0])}" if len(settings) == 1 else ""  # is not said in each line
        for part in parts:
            lines.append(f'<li><a href="{_link(section, part.name)}">{escape(part.title.removesuffix(every))}</a></li>')
        lines.append(f'<li><a href="{_link(section, "runs")}">Runs</a></li></ul></li>')
    return "\n".join([*lines, "</ul>"])


def _place(section: Section, *parts: object) -> str:
    return "--".join([section.name, *(str(part).replace(" ", "-") for part in parts)])


def _anchor(section: Section, *parts: object) -> str:
    return escape(_place(section, *parts))


def _link(section: Section, *parts: object) -> str:
    return "#" + quote(_place(section, *parts))


def _section(section: Section, figures: Sequence[Figure]) -> str:
    evidence, study = section.evidence, section.evidence.study
    parts = [f'<section id="{section.name}">', f"<h2>{escape(study.name)}</h2>"]
    parts += [f"<p>{escape(paper)}</p>"] if (paper := relation_to_paper(study)) else []
    parts += [_state(evidence), *(_figure(section, figure, figure.caption) for figure in figures)]
    parts += [_table(section, table) for table in section.tables]
    parts += [f'<h3 id="{_anchor(section, "runs")}">Runs: what is behind each number</h3>']
    parts += [_runs(section, key, runs) for key, runs in _groups(evidence)]
    return "\n".join([*parts, "</section>"])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def _state(evidence: Evidence) -> str:
    """How much of the grid is there; what is not, by name."""
    counts = {"damaged": len(evidence.damaged), "failed": len(evidence.failed), "missing": len(evidence.missing)}
    total = len(evidence.runs) + sum(counts.values())
    text = f"<p>{len(evidence.runs)} of {total} runs are finished"
    text += "".join(f", {number} {what}" for what, number in counts.items() if number) + ".</p>"
    lists = {
        "Damaged and left out": [f"{path}: {why}" for path, why in evidence.damaged.items()],
        "Failed": [f"{cell}: {error.get('message', '')}" for cell, error in evidence.failed.items()],
        "Not finished": [str(cell) for cell in evidence.missing],
    }
    for title, lines in lists.items():
        if lines:
            rows = "".join(f"<li>{escape(line)}</li>" for line in lines)
            text += f'<details class="problems"><summary>{title} ({len(lines)})</summary><ul>{rows}</ul></details>'
    return text


def _figure(section: Section, figure: Figure, caption: str) -> str:
    def runs(method: str, sparsity: float) -> str:
        found = section.evidence.group(figure.setting, method, sparsity)
        return _link(section, "runs", figure.setting, method, sparsity) if found else ""

    chart = interactive(figure.chart, At(_place(section, figure.name), runs))
    return (
        f'<figure id="{_anchor(section, figure.name)}">{chart}'
        f"<figcaption><strong>{escape(figure.title)}.</strong> {escape(caption)}</figcaption></figure>"
    )


def _table(section: Section, table: Table) -> str:
    texts = table.text_columns()
    kinds = [
        "text" if text else "paper" if column.startswith("paper ") else ""
        for text, column in zip(texts, table.columns, strict=True)
    ]
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(column)}</button></th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = ("<tr>" + "".join(map(_entry, [section] * len(row), row, kinds)) + "</tr>" for row in table.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<h3 id="{_anchor(section, table.name)}">{escape(table.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"
        f'<ul class="notes">{notes}</ul>'
    )


def _entry(section: Section, entry: Entry, kind: str) -> str:
    value, interval, rest = entry.text.partition(" [")
    text = (
        f"{escape(value)} <small>{escape(interval + rest)}</small>".replace("<small> ", "<small>")
        if rest
        else escape(value)
    )
    if entry.runs is not None and entry.text != NOTHING:
        text = f'<a href="{_link(section, "runs", *entry.runs)}">{text}</a>'
    if entry.bold:
        text = f"<strong>{text}</strong>"
    value = "" if entry.value is None else f' data-value="{entry.value!r}"'
    return f'<td class="{kind}"{value}>{text}</td>' if kind else f"<td{value}>{text}</td>"


def _groups(evidence: Evidence) -> Iterable[tuple[tuple[str, str, float], list[Run]]]:
    for setting in evidence.settings:
        for cell in evidence.cells(setting):
            yield (setting, *cell), list(evidence.group(setting, *cell).values())


def _runs(section: Section, key: tuple[str, str, float], runs: Sequence[Run]) -> str:
    """The configuration that the seeds share, and what is each one's own."""
    setting, method, sparsity = key
    config = {name: value for name, value in runs[0].cell.config.plain().items() if name != "seed"}
    given = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(_shown(v))}</dd></div>" for n, v in config.items())
    columns = ["Seed", *(escape(lookup(name).title) for name in tabulated())]
    columns += ["Temperature", "Seconds", "Configuration", "Versions"]
    head = "".join(f"<th scope='col'><button type='button'>{title}</button></th>" for title in columns)
    rows = "".join(f"<tr>{_run(run)}</tr>" for run in runs)
    title = f"{section.evidence.study.label(method)}, {percent(sparsity)}, {setting}"
    return (
        f'<details class="runs" id="{_anchor(section, "runs", *key)}"><summary>{escape(title)}: {len(runs)} '
        f"run{'s' if len(runs) > 1 else ''}</summary><dl>{given}</dl>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _run(run: Run) -> str:
    numbers = run.numbers[False]
    values: list[Any] = [run.cell.seed]
    values += [numbers[name].value if name in numbers else None for name in tabulated()]
    values += [run.result["temperature"], run.result["seconds"]]
    cells = "".join(
        f"<td>{NOTHING}</td>" if value is None else f'<td data-value="{value!r}">{_shown(value)}</td>'
        for value in values
    )
    versions = ", ".join(f"{name} {version}" for name, version in run.result["versions"].items())
    return f"{cells}<td class='text'><code>{run.cell.digest}</code></td><td class='text'>{escape(versions)}</td>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value)


def document(title: str, body: str) -> str:
    """The whole file, styles and scripts inside it; ``title`` and ``body`` are HTML."""
    style = asset("page.css") + asset("charts.css")
    script = asset("page.js") + asset("charts.js")
    body = body.replace(" %", "\u00a0%")  # a line never begins with it
    return Template(asset("page.html")).substitute(title=title, style=style, script=script, body=body)


def asset(name: str) -> str:
    return files("cigl.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")
