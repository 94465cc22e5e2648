"""From study folders to a report: the page, and beside it tables, figures and data as files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cigl import __version__
from cigl.common.errors import CiglError
from cigl.common.files import write
from cigl.common.text import count
from cigl.report.evidence import data
from cigl.report.evidence.measurements import Evidence
from cigl.report.figures.catalogue import SUFFIXES, make_figures
from cigl.report.page.layout import Section, page
from cigl.report.tables.catalogue import make_tables
from cigl.report.tables.formats import FORMATS


def write_report(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """``out`` is the page; its files are in the folder of the same name without ``.html``. Returns what is where."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise CiglError(f"--out is {out}: give a name that ends in .html; the files go beside it, without the .html.")
    evidences = [Evidence.read(folder) for folder in folders]
    place = out.with_suffix("")
    try:
        names = _names([evidence.study.name for evidence in evidences])
        sections = []
        for evidence, name in zip(evidences, names, strict=True):
            own = place if len(folders) == 1 else place / name
            own.mkdir(parents=True, exist_ok=True)
            sections.append(_write_study(evidence, name, own))
        downloads = data.files(evidences)
        for name, content in downloads.items():
            write(place / name, content)
        studies = list(dict.fromkeys(evidence.study.name for evidence in evidences))
        title = f"{'Study' if len(studies) == 1 else 'Studies'}: {', '.join(studies)}"
        write(out, page(title, _made(evidences), sections, downloads).encode())
    except OSError as error:
        raise CiglError(f"{error.filename or out} can't be written: {error.strerror}; choose another --out.") from error
    return {
        "page": str(out),
        "files": str(place),
        "studies": {name: _counts(evidence) for name, evidence in zip(names, evidences, strict=True)},
    }


def _write_study(evidence: Evidence, name: str, place: Path) -> Section:
    tables, figures = make_tables(evidence), make_figures(evidence)
    for table in tables:
        for suffix, text in FORMATS.items():
            write(place / (table.name + suffix), text(table).encode())
    for figure in figures:
        for suffix in SUFFIXES:
            figure.plot(place / (figure.name + suffix))
    return Section(evidence, tables, figures, name)


def _names(studies: Sequence[str]) -> list[str]:
    """For anchors and folders: letters, digits and hyphens, each name once."""
    found: list[str] = []
    for study in studies:
        plain = "".join(letter if letter.isalnum() else "-" for letter in study)
        number = 2
        name = plain
        while name in found:
            name, number = f"{plain}-{number}", number + 1
        found.append(name)
    return found


def _made(evidences: Sequence[Evidence]) -> str:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return (
        f"Made on {today} by cigl {__version__} from "
        f"{count(sum(len(e.runs) for e in evidences), 'finished run')}. Click a heading of a table to sort by it; a "
        "number links to the runs behind it, with their configuration and versions."
    )


def _counts(evidence: Evidence) -> dict[str, int]:
    return {
        "finished": len(evidence.runs),
        "damaged": len(evidence.damaged),
        "failed": len(evidence.failed),
        "missing": len(evidence.missing),
    }
