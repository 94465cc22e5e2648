"""The engine's promises with workers in this process: nothing twice, failures recorded, the rest is run."""

import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from quick import METHODS, SETTING, quick, times_begun
from rich.console import Console

from cigl.study import engine
from cigl.study.engine import Tally, run_cells
from cigl.study.grid import cells
from cigl.study.show import _Grid, grid_progress, summary
from cigl.study.store import StudyFolder
from cigl.study.work import do_order
from cigl.train.folder.run_folder import RunFolder


class Here:
    """Workers of one thread; ``does`` stands in for the work."""

    size = 1

    def __init__(self, does=do_order):
        self.does, self.orders, self.threads, self.closed = does, [], ThreadPoolExecutor(1), False

    def submit(self, order):
        self.orders.append(order)
        return self.threads.submit(self.does, order)

    def share(self, order):
        return 0.5

    def close(self):
        self.threads.shutdown()
        self.closed = True


def run(folder, workers=None, wanted=None, show=lambda tally, news: None):
    return run_cells(folder, cells(folder.read()) if wanted is None else wanted, workers or Here(), show)


def created(path, **changes):
    folder = StudyFolder(path)
    folder.create(quick(**changes))
    return folder


def test_a_study_is_run_once(tmp_path):
    folder = created(tmp_path, settings={"toy": SETTING | {"temperature": "holdout"}})
    workers, news = Here(), []
    tally = run(folder, workers, show=lambda tally, lines: news.extend(lines))
    assert (tally.done, tally.total, tally.failed, workers.closed) == (2, 2, {}, True)
    assert len(news) == 2
    assert all("done in" in line for line in news)
    assert len(folder.find().finished) == 2
    again = Here()
    assert run(folder, again).done == 2
    assert again.orders == []
    for each in folder.find().finished:
        assert times_begun(each.path) == 1
        assert each.result["temperature"] is not None


def test_a_part_now_and_the_rest_later(tmp_path):
    folder = created(tmp_path)
    assert run(folder, wanted=folder.read().only({"method": ["rigl"]})).total == 1
    rest = Here()
    run(folder, rest)
    assert [order["config"]["method"] for order in rest.orders] == ["cigl"]


def test_cells_with_the_same_configuration_are_one_run(tmp_path):
    folder = created(tmp_path, methods={"rigl": METHODS["rigl"], "same": METHODS["rigl"]})
    workers = Here()
    tally = run(folder, workers)
    assert (len(workers.orders), tally.total) == (1, 1)
    assert len(folder.find().finished) == 2


def test_a_failed_run_is_recorded_the_rest_is_run_and_it_is_tried_again(tmp_path, monkeypatch):
    settings = {"bad": SETTING | {"train_size": 10**6}, "good": SETTING}
    folder = created(tmp_path, methods={"rigl": METHODS["rigl"]}, settings=settings)
    tally = run(folder)
    assert tally.done == 1
    ((cell, message),) = tally.failed.items()
    assert cell.setting == "bad"
    assert "train_size is 1000000" in message
    error = json.loads((folder.folder(cell).path / "error.json").read_text())
    assert error["message"] == message
    assert "Traceback" in error["traceback"]
    monkeypatch.setattr("cigl.study.work.complete", lambda *given, **more: RunFolder(given[1]).write_json(
        "result.json", {"config": given[0].plain()}))  # fmt: skip
    assert run(folder).done == 2
    assert not (folder.folder(cell).path / "error.json").exists()


def test_other_errors_than_ours_are_named(tmp_path, monkeypatch):
    folder = created(tmp_path, methods={"rigl": METHODS["rigl"]})

    def broken(*given, **more):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("cigl.study.work.complete", broken)
    assert list(run(folder).failed.values()) == ["ZeroDivisionError: by zero"]


def test_a_run_whose_process_dies_each_time_is_recorded(tmp_path):
    folder = created(tmp_path)

    def die(order):
        if order["config"]["method"] == "cigl":
            raise RuntimeError("the process died")
        return do_order(order)

    tally = run(folder, Here(die))
    assert (tally.done, list(tally.failed.values())) == (1, ["the process died"])
    assert next(iter(folder.find().failed.values()))["message"] == "the process died"


def test_a_run_that_another_process_has_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "BUSY", 0.05)
    folder = created(tmp_path)
    rigl, cigl = cells(folder.read())
    other, seen = folder.folder(rigl), []
    release = threading.Event()

    def hold():
        with other.locked():
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    while not other.is_locked:
        time.sleep(0.01)

    def show(tally, news):
        seen.append((tally.done, tally.elsewhere))
        if tally.done == 1 and tally.elsewhere == 1:
            release.set()

    assert run(folder, show=show).done == 2
    thread.join()
    assert (1, 1) in seen
    assert times_begun(folder.folder(cigl).path) == times_begun(other.path) == 1


def test_what_other_processes_finish_is_not_run_again(tmp_path):
    folder = created(tmp_path)

    def late(order):
        do_order(order)  # as if another process had been quicker
        return do_order(order)

    assert run(folder, Here(late)).done == 2
    assert all(times_begun(each.path) == 1 for each in folder.find().finished)


def test_masks_are_drawn_from_the_last_weights(tmp_path):
    methods = {"cigl": METHODS["cigl"] | {"random_mask": 0.5}}
    plain = created(tmp_path / "plain", methods=methods, reference="cigl")
    run(plain)
    folder = StudyFolder(tmp_path / "masks")
    folder.create(quick(methods=methods, reference="cigl", masks=3), plain.runs)  # a run that another study finished
    run(folder)
    (found,) = folder.find().finished
    assert times_begun(found.path) == 1
    assert found.masks.keys() == {"W", "Z*W"}
    assert len(found.masks["Z*W"]) == len(set(found.masks["Z*W"])) == 3  # draws differ
    assert all(0 <= value <= 1 for value in [found.masks["W"], *found.masks["Z*W"]])
    before = (found.path / "masks.json").stat().st_mtime_ns
    assert run(folder, workers := Here()).done == 1
    assert workers.orders == []
    assert (found.path / "masks.json").stat().st_mtime_ns == before


def test_masks_of_a_method_that_has_none(tmp_path):
    folder = created(tmp_path, methods={"rigl": METHODS["rigl"]}, masks=2)
    assert "'rigl' has no random mask to draw" in next(iter(run(folder).failed.values()))


def test_a_run_folder_of_another_configuration_is_not_touched(tmp_path):
    folder = created(tmp_path, methods={"rigl": METHODS["rigl"]})
    (cell,) = cells(folder.read())
    run_folder = folder.folder(cell)
    run_folder.path.mkdir(parents=True)
    run_folder.write_config(cell.config.changed(lr=0.7))
    assert "another configuration" in run(folder).failed[cell]
    assert run_folder.read_config().lr == 0.7


def test_the_pilot_trains_on_nine_tenths_of_what_the_run_trains_on(tmp_path):
    pilot = METHODS["cigl"] | {"temperature": "pilot"}
    folder = created(tmp_path, methods={"pilot": pilot}, reference="pilot", seeds=(0, 1))
    run(folder)
    (place,) = (folder.runs / "pilots").iterdir()
    held_out = RunFolder(place).read_config().held_out
    assert 1 - held_out == pytest.approx(0.9 * (1 - SETTING["validation"]))
    temperatures = {each.result["temperature"] for each in folder.find().finished}
    assert temperatures == {RunFolder(place).read_json("result.json")["temperature"]}


def test_time_left_follows_the_pace():
    tally = Tally(total=10, done=4)
    assert tally.seconds_left is None
    tally.started -= 60
    tally.ended, tally.running = 2, dict.fromkeys(cells(quick()), 0.5)
    assert tally.seconds_left == pytest.approx((10 - 4 - 1) * 60 / 3, rel=0.01)
    assert summary(tally) == "4/10 done, 2 running, 1:40 left"
    tally.elsewhere = 1
    assert "1 in other processes" in summary(tally)


def test_progress_without_a_terminal_is_lines_and_quiet_is_nothing(capsys):
    tally = Tally(total=2, done=1)
    with grid_progress("quick") as show:
        show(tally, ["rigl: done"])
        show(tally, [])
    assert capsys.readouterr().err == "rigl: done (1/2 done, 0 running)\n"
    with grid_progress("quick", quiet=True) as show:
        show(tally, ["rigl: done"])
    assert capsys.readouterr().err == ""


def test_a_study_and_its_runs_have_a_line_each():
    first, second = cells(quick(methods=METHODS))[:2]
    grid = _Grid("quick")
    grid.tally = Tally(total=4, done=1, running={first: 0.5, second: 1.0})
    console = Console(file=io.StringIO(), width=100)
    console.print(grid)
    lines = [line.strip("━ ") for line in console.file.getvalue().splitlines()]
    assert lines[0].startswith("quick  1/4 done, 2 running")
    assert lines[1:] == [f"{first}  50 %", f"{second}  evaluating"]


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    cell = cells(quick())[0]
    with grid_progress("quick") as show:
        show(Tally(total=2, done=0, running={cell: 0.5}), [])
        show(Tally(total=2, done=1), ["rigl: done"])
    assert "rigl: done" in capsys.readouterr().err
