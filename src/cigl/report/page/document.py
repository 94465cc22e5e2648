"""One HTML file that needs nothing else: styles and scripts inside it, and a policy that lets nothing be fetched."""

from __future__ import annotations

from importlib.resources import files
from string import Template


def document(title: str, body: str) -> str:
    """``title`` and ``body`` are HTML."""
    style = asset("page.css") + asset("charts.css")
    script = asset("page.js") + asset("charts.js")
    return Template(asset("page.html")).substitute(title=title, style=style, script=script, body=body)


def asset(name: str) -> str:
    return files("cigl.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")
