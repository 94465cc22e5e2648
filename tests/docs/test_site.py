"""The site builds without a warning, and asks nothing of the network."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_pages_fetch_nothing_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for path in site.rglob("*.html"):
        found = [tag for tag in fetched.findall(path.read_text()) if 'rel="canonical"' not in tag]
        assert not found, (path.name, found[:3])
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text()), path.name


def test_equations_are_mathml(site):
    page = (site / "methods.html").read_text()
    assert page.count("<math") >= 10
    assert "\\frac" not in re.sub(r"<annotation.*?</annotation>", "", page, flags=re.S)


def test_the_reference_shows_arguments_and_examples(site):
    page = (site / "api" / "sparse-training.html").read_text()
    for name in ("cigl.attach", "cigl.Sparsifier.finalize", "cigl.method"):
        assert f'id="{name}"' in page
    assert "&gt;&gt;&gt; " in page
    assert "Parameters:" in page


def test_files_of_the_repository_are_in_the_site(site):
    assert (site / "results" / "main" / "sparsity-fashion-mnist-mlp.png").is_file()
    assert (site / "src" / "cigl" / "sparsify" / "methods" / "catalogue.py").is_file()
    assert 'href="../' not in (site / "results.html").read_text()


def test_the_search_needs_no_server(site):
    assert '<script src="assets/iframe-worker.js">' in (site / "index.html").read_text()
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")


def test_the_home_page_has_a_door_for_each_kind_of_user(site):
    page = (site / "index.html").read_text()
    assert [f'href="{name}.html"' in page for name in ("quickstart", "studies", "runtime")] == [True] * 3
    assert "fonts/inter" in (site / "assets" / "style.css").read_text()


def test_defaults_in_the_reference_are_values(site):
    page = (site / "api" / "calibration.html").read_text()
    assert "RESAMPLES" not in page
    assert "<code>1000</code>" in page


def test_no_line_begins_with_a_percent_sign(site):
    for name in ("index", "results", "calibration"):
        prose = re.sub(r"<pre.*?</pre>", "", (site / f"{name}.html").read_text().split("<article")[1], flags=re.S)
        assert not re.search(r"\d %(?!\w)", prose.split("</article>")[0]), name
