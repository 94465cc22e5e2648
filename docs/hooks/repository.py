"""Pages may link to any file of the repository: it then becomes part of the site.

On disk and on GitHub such links are relative to the page (``../results/main/figure.png``). The site's folder is
``docs``, so each file outside that is linked gets a place in the site, and the links are rewritten. Links to the README
lead to the home page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # pages without being linked
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
PREFORMATTED = re.compile("(<pre.*?</pre>)", re.DOTALL)
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def in_site(path: str) -> str:
    """The place in the site of a file of the repository, or of a folder with a README.

    >>> in_site("docs/format.md"), in_site("README.md"), in_site("evidence/rise.yaml")
    ('format.md', 'index.md', 'evidence/rise.yaml')
    """
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{path}/README.md"
    return path.removeprefix("docs/")


def in_repository(place: str) -> str:
    return f"docs/{place}" if (ROOT / "docs" / place).is_file() else place


def links(text: str, path: str) -> set[str]:
    """The files of the repository that a page of it links to."""
    prose = CODE.sub("", text)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), found)) for found, _ in LINK.findall(prose)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = ["README.md", *PROJECT, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        place, source = in_site(path), ROOT / in_repository(in_site(path))
        if files.get_file_from_path(place) is None and source.is_file():
            files.append(File.generated(config, place, abs_src_path=str(source)))
        if place.endswith(".md") and source.is_file():
            new = links(source.read_text("utf-8"), in_repository(place)) - seen
            seen |= new
            waiting += sorted(new)
    return files


def on_page_content(html: str, **rest: object) -> str:
    """No line of prose begins with a percent sign."""
    parts = PREFORMATTED.split(html)
    return "".join(part if part.startswith("<pre") else re.sub(r"(?<=\d) %(?!\w)", "\u00a0%", part) for part in parts)


def on_page_markdown(markdown: str, page: Page, **rest: object) -> str:
    folder, own = posixpath.dirname(in_repository(page.file.src_uri)), posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        return posixpath.relpath(in_site(target), own or ".") + match[2]

    parts = CODE.split(markdown)
    return "".join(part if CODE.fullmatch(part) else LINK.sub(rewritten, part) for part in parts)
