"""Every block of code in the documentation runs as it stands, in the order of its page."""

from __future__ import annotations

import os
import re
import sys
import warnings

import pytest
from pages import LANGUAGES, PAGES, Block, Reader, blocks, parse
from preludes import PRELUDES

import cigl
from cigl.calibrate.registry import METRICS

MARKS = {"", "slow", "parse", "alone"}


@pytest.fixture
def _reader_s_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("cigl.calibrate.registry.METRICS", dict(METRICS))  # a page registers one
    known = set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for name in set(sys.modules) - known:  # modules that a page has written
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def read(page: str, slow: bool) -> None:
    reader = Reader(PRELUDES.get(page, ""))
    for block in blocks(page):
        try:
            if block.mark == "parse" or (block.mark == "slow" and not slow):
                parse(block)
            else:
                reader.run(block)
        except BaseException as error:
            raise AssertionError(f"{block} does not run: {type(error).__name__}: {error}") from error


def is_slow(page: str) -> bool:
    return any(block.mark == "slow" for block in blocks(page))


@pytest.mark.usefixtures("_reader_s_folder")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_a_page(page):
    read(page, slow=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_reader_s_folder")
@pytest.mark.parametrize("page", [page for page in PAGES if is_slow(page)])
def test_a_page_with_what_takes_minutes(page, monkeypatch):
    monkeypatch.setitem(os.environ, "CIGL_DATA", os.path.expanduser("~/.cache/cigl"))
    for dataset in {
        name for block in blocks(page) for name in re.findall(r"# needs .*: cigl data get ([\w-]+)", block.text)
    }:
        cigl.data.get(dataset)  # as a comment says that one has to
    read(page, slow=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block} has no language that is known: {block.language!r}"
        assert block.mark in MARKS, f"{block} has an unknown mark: {block.mark!r}"
    assert len(blocks(page)) * 2 == sum(line.startswith("```") for line in PAGES[page].read_text().splitlines())


def test_a_block_that_does_not_run_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    for language, text in [
        ("python", "undefined_name"),
        ("sh", "cigl train --unknown-flag 1"),
        ("sh", "cigl evaluate runs/nowhere"),
        ("sh", "make nothing"),
        ("yaml", "unknown_key: 1"),
    ]:
        with pytest.raises(BaseException):  # noqa: B017, PT011
            reader.run(Block("page", 1, language, text))
