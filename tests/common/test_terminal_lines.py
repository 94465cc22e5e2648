"""Lines on a terminal, at every width: bars, counts and phases (cigl.common.progress)."""

import io
import sys

import pytest
from rich.console import Console

from cigl.common import progress
from cigl.common.phases import phase
from cigl.common.progress import Count, Field, Phases, Speed, bar_line, counting, status_line

FIELDS = [
    Field("epoch 12/60", 2),
    Field("step 44/62", 5),
    Field("loss 1.196", 3),
    Field("accuracy 52.4 %", 8),
    Field("41,203 images/s", 6),
    Field("0:12 left", 1),
]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (20, "0:12 left"),
        (24, "epoch 12/60  0:12 left"),
        (40, "epoch 12/60  loss 1.196  0:12 left"),
        (50, "--------------  epoch 12/60  loss 1.196  0:12 left"),
        (60, "------------  epoch 12/60  step 44/62  loss 1.196  0:12 left"),
        (77, "------------  epoch 12/60  step 44/62  loss 1.196  41,203 images/s  0:12 left"),
    ],
)
def test_fields_go_in_order_of_importance(width, shown):
    line = bar_line(0.0, FIELDS, width, ascii_only=True).plain
    assert line == shown
    assert len(line) <= width


@pytest.mark.parametrize("width", range(9, 140))
def test_no_line_is_longer_than_the_terminal(width):
    assert len(bar_line(0.3, FIELDS, width).plain) <= width


def test_everything_is_shown_where_there_is_room():
    line = bar_line(0.5, FIELDS, 120).plain
    assert all(each.text in line for each in FIELDS)
    assert line.count("━") == 38


def drawn(what, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return console.file.getvalue().strip()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_count_shows_how_many_of_how_many_and_the_time_left(clock):
    count = Count("reading images")
    assert drawn(count).endswith("reading images")
    count.update(256, 1024)
    clock[0] += 2
    count.update(512, 1024)
    line = drawn(count)
    assert line.endswith("reading images  512/1,024  0:04 left")
    assert line.count("━") == 40


def test_bytes_are_counted_in_their_unit_and_may_have_no_total(clock):
    count = Count("file.bin", " MB", 1e6)
    count.update(1_500_000, None)
    assert drawn(count).endswith("file.bin  1.5 MB")
    count.update(2_000_000, 4_000_000)
    assert "file.bin  2.0/4.0 MB" in drawn(count)


def test_a_phase_shows_how_long_it_has_taken(clock):
    phases = Phases()
    assert drawn(phases) == ""
    phases.enter(("loading PyTorch",))
    assert drawn(phases).endswith("loading PyTorch")
    clock[0] += 61
    assert drawn(phases).endswith("loading PyTorch  1:01")


def test_speed_is_that_of_the_last_seconds(clock):
    speed = Speed(seconds=10)
    assert speed.per_second == 0
    for _ in range(30):
        clock[0] += 1
        speed.add(5)
    assert speed.per_second == 5
    for _ in range(30):
        clock[0] += 1
        speed.add(50)
    assert speed.per_second == 50


@pytest.mark.parametrize("quiet", [False, True])
def test_nothing_is_drawn_where_nobody_looks(quiet, capsys):
    with counting("images", quiet) as tick, status_line(quiet), phase("loading"):
        tick(1, 2)
    assert capsys.readouterr().err == ""


def test_what_is_drawn_is_erased(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with counting("reading images", quiet=False) as tick:
        tick(1, 2)
    assert "reading images" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")
