import base64
import csv
import html.parser
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from urllib.parse import unquote

import pytest
from made_runs import a_study, make

from cigl.report.evidence.measurements import Evidence
from cigl.report.write import write_report
from cigl.study.catalogue import study
from cigl.study.grid import Study, cells
from cigl.study.store import StudyFolder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Seen(html.parser.HTMLParser):
    """Tags with their attributes, and whether all that was opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, wanted):
        return [attributes for tag, attributes in self.tags if tag == wanted]


def read(page):
    """Without what keeps a number and its percent sign on one line."""
    return page.read_text().replace("\u00a0%", " %")


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([finished], out)
    return out


@pytest.fixture(scope="module")
def seen(written):
    return Seen(read(written))


def test_no_line_begins_with_a_percent_sign(written):
    assert "\u00a0%" in written.read_text()
    assert not re.search(r"\d %", re.sub(r'"data:[^"]*"', "", written.read_text()))


def assert_whole(seen):
    assert seen.open == []
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in seen.all("a") if a["href"].startswith("#")]
    assert len(links) > 30
    assert {unquote(link[1:]) for link in links} <= set(ids)


def test_it_is_whole_and_links_lead_somewhere(seen):
    assert_whole(seen)


def test_nothing_is_asked_of_the_network(seen, written):
    for _, attributes in seen.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    policy = next(m["content"] for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    page = re.sub(r'"data:[^"]*"', "", read(written))
    assert "http:" not in page
    assert "https:" not in page


def test_it_opens_with_the_finding_and_one_figure(written):
    text = html.unescape(read(written))
    finding = text.index("CigL is better calibrated than RigL")
    assert text.index("<h1>") < text.index("<nav") < finding < text.index("<figure") < text.index("<section")
    assert text[: text.index("<section")].count("<figure") == 1
    assert "Caution: 2 seeds per method can't show how much seeds differ" in text
    assert text.count("<figure") == 2  # the first is not shown again


def test_figures_have_titles_and_points_tell_their_numbers_and_seeds(seen, written):
    plots = [svg for svg in seen.all("svg") if "plot" in svg.get("class", "")]
    ids = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    assert len(plots) == 4
    assert all(svg["aria-labelledby"] in ids and svg["tabindex"] == "0" for svg in plots)
    points = [g for g in seen.all("g") if "point" in g.get("class", "").split()]
    assert len(points) == 2 * (2 * 3 + 1) * 2
    titles = re.findall(r"<title>([^<]*)</title>", read(written))[1:]
    assert len(titles) == len(points)
    for title in titles:
        assert re.search(r"^by seed: 0: [\d.]+, 1: [\d.]+$", title, re.M)
        assert re.search(r"95 % interval: −?[\d.]+ to [\d.]+\)", title)


def test_colours_come_from_the_colour_scheme(written):
    plots = re.findall(r"<svg.*?</svg>", read(written), re.S)
    assert plots
    for plot in plots:
        painted = re.findall(r"(?:fill|stroke): ([^;\"]+)", plot)
        assert painted
        assert all(one == "none" or re.match(r"var\(--|color-mix\(|url\(#", one) for one in painted)


def test_the_data_can_be_downloaded(seen, finished):
    files = {a["download"]: base64.b64decode(a["href"].split(",", 1)[1]) for a in seen.all("a") if "download" in a}
    evidence = Evidence.read(finished)
    runs = list(csv.DictReader(io.StringIO(files["runs.csv"].decode())))
    assert len(runs) == len(evidence.runs)
    first = evidence.runs[0]
    assert float(runs[0]["ece_15"]) == first.numbers[False]["ece_15"].value
    assert float(runs[0]["nll_temperature"]) == first.numbers[True]["nll"].value
    assert runs[0]["digest"] == first.cell.digest
    whole = json.loads(files["data.json"])
    assert whole["runs"][0]["config"] == first.cell.config.plain()
    assert whole["studies"][0]["name"] == "main"
    of = {(row["method"], row["of"]) for row in csv.DictReader(io.StringIO(files["statistics.csv"].decode()))}
    assert of == {("dense", "mean"), ("rigl", "mean"), ("cigl", "mean"), ("cigl", "difference to rigl")}


def test_files_beside_it(written):
    names = {path.name for path in written.with_suffix("").iterdir()}
    for name in (
        "ece-small.md",
        "ece-small.tex",
        "ece-small.csv",
        "sparsity-small.svg",
        "sparsity-small.png",
        "runs.csv",
    ):
        assert name in names


def test_configuration_and_versions_are_behind_the_numbers(written, finished):
    text = read(written)
    for run in Evidence.read(finished).runs:
        assert run.cell.digest in text
    assert "torch 2.6.0" in text
    assert "<dt>weight_decay</dt><dd>0.0001</dd>" in text


def test_what_is_missing_failed_or_damaged_is_named(tmp_path):
    some = a_study(methods=("rigl", "cigl"), sparsity=(0.8,), seeds=(0, 1))
    folder = make(tmp_path, some, but=(1, 2))
    failed = folder.runs / cells(some)[1].digest
    failed.mkdir()
    (failed / "error.json").write_text(json.dumps({"message": "ran <out> of memory", "traceback": ""}))
    damaged = folder.runs / cells(some)[3].digest
    (damaged / "report.json").write_text("{")
    written = write_report([tmp_path], tmp_path / "report.html")
    assert written["studies"] == {"main": {"finished": 1, "damaged": 1, "failed": 1, "missing": 1}}
    text = read(tmp_path / "report.html")
    assert "1 of 4 runs are finished, 1 damaged, 1 failed, 1 missing." in text
    assert "ran &lt;out&gt; of memory" in text
    assert str(damaged) in text
    assert "seed 1" in text
    assert "its interval is for that one network" in text


def test_names_are_text_not_markup(tmp_path):
    odd = "_5%41 w/o <i>&\"'|"
    own = Study(
        "<b>&$x", settings={"a b<u>&%|": {"preset": "mnist1d-mlp"}}, reference=odd, about="<s>$y",
        methods={odd: {"method": "rigl"}, "cigl": {"method": "cigl"}}, sparsity=(0.8, 0.9), seeds=(0,),
        labels={"cigl": r'"><script>alert(1)</script> $\frac{$'},
    )  # fmt: skip
    make(tmp_path, own)
    write_report([tmp_path], tmp_path / "report.html")
    text = read(tmp_path / "report.html")
    assert "<script>alert" not in text
    assert not {"i", "u", "b", "s"} & {tag for tag, _ in Seen(text).tags}
    assert_whole(Seen(text))
    drawn = (tmp_path / "report").glob("*.svg")
    assert all("_5%41" in one.read_text() for one in drawn)  # in the legend


def test_only_the_papers_experiments_are_said_to_be(tmp_path):
    """Whatever a study is called: the name of one of the paper's says nothing, its runs do."""
    own, papers = tmp_path / "own", tmp_path / "papers"
    make(own, a_study("dropout", methods=("rigl", "cigl"), sparsity=(0.8,), seeds=(0,)))
    make(papers, replace(study("wma-effect", "small"), name="mine", seeds=(0,)), n=100)
    write_report([own, papers], tmp_path / "both.html")
    text = html.unescape(read(tmp_path / "both.html"))
    assert text.count("the paper's") == 1
    assert "It is the experiment of the paper's table on averaging alone, in a small setting." in text


def test_two_studies_of_one_name_on_one_page(finished, tmp_path):
    write_report([finished, finished], tmp_path / "both.html")
    seen = Seen(read(tmp_path / "both.html"))
    assert [section["id"] for section in seen.all("section")] == ["main", "main-2"]
    assert {path.name for path in (tmp_path / "both").iterdir() if path.is_dir()} == {"main", "main-2"}


FRAME = """<!doctype html><title>probe</title><body><iframe width="{width}" height="800" style="border: 0"
  srcdoc="{page}">
</iframe><script>onmessage = event => {{ document.body.textContent = event.data; }};</script></body>"""


def browse(path, width, script, tmp_path):
    """What a script finds in the page, and the browser's complaints.

    The page is in a frame, because the window of a headless browser is at least 500 pixels wide; its own policy
    holds there too.
    """
    page = path.read_text().replace("</body>", f"<script>{script}</script></body>")
    probe = tmp_path / "probe.html"
    probe.write_text(FRAME.format(width=width, page=html.escape(page, quote=True)))
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        "--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000", "--dump-dom",
    ]  # fmt: skip
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *flags, profile, "--window-size=1300,900", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.S)[1]
    return json.loads(html.unescape(body)), messages


PROBE = """
const table = document.querySelector("table"), heading = table.tHead.rows[0].cells[2];
const column = () => Array.from(table.tBodies[0].rows, row => row.cells[2].dataset.value ?? null);
heading.firstElementChild.click();
const up = column(), upState = heading.getAttribute("aria-sort");
heading.firstElementChild.focus();
const focused = document.activeElement === heading.firstElementChild;
heading.firstElementChild.click();
const down = column(), downState = heading.getAttribute("aria-sort");
const link = document.querySelector("td a");
location.hash = link.getAttribute("href");
setTimeout(() => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  parent.postMessage(JSON.stringify(found(target)), "*");
}, 500);
const width = document.documentElement.scrollWidth, seen = innerWidth;
const drawn = Array.from(document.querySelectorAll("svg.plot"), svg => svg.getBoundingClientRect().height > 100);
const plot = document.querySelector("svg.plot"), tip = document.querySelector(".tip");
plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
const read = [tip.hidden, tip.textContent];
plot.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
const closed = tip.hidden;
plot.querySelector(".point circle").dispatchEvent(new MouseEvent("click", {bubbles: true}));
const tapped = [tip.hidden, tip.textContent], box = tip.getBoundingClientRect();
const inside = box.left >= 0 && box.right <= innerWidth;
const entries = performance.getEntriesByType("resource").map(entry => entry.name);
const asked = entries.filter(name => !name.startsWith("data:"));
const found = target => ({up, upState, focused, down, downState, opened: target.open, width, seen, drawn, asked,
  read, closed, tapped, inside});
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [1200, 390])
def test_in_a_real_browser(written, width, tmp_path):
    found, messages = browse(written, width, PROBE, tmp_path)
    assert messages == []
    numbers = [float(value) for value in found["up"] if value is not None]
    assert numbers == sorted(numbers)
    assert found["up"][len(numbers) :] == [None] * (len(found["up"]) - len(numbers))
    assert [float(value) for value in found["down"] if value is not None] == numbers[::-1]
    assert (found["upState"], found["downState"]) == ("ascending", "descending")
    assert found["focused"]
    assert found["opened"]
    assert found["seen"] == width
    assert found["width"] <= width
    for hidden, told in (found["read"], found["tapped"]):
        assert not hidden
        assert "by seed: 0: " in told
    assert found["closed"]
    assert found["inside"]
    assert found["drawn"]
    assert all(found["drawn"])
    assert found["asked"] == []


def test_an_unfinished_study_is_one_sentence(tmp_path):
    StudyFolder(tmp_path).create(a_study())
    with pytest.raises(ValueError, match="no finished run yet"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
