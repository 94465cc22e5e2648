"""What becomes of SIGINT and SIGTERM."""

import os
import signal
import threading

import pytest

from cigl.common.phases import phase, watching
from cigl.train import signals
from cigl.train.signals import Stopped, listening


def test_a_signal_is_noted_and_acted_on_where_it_is_asked_for():
    before = signal.getsignal(signal.SIGTERM)
    with listening() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.number == signal.SIGTERM
        with pytest.raises(Stopped, match="SIGTERM") as stopped:
            requests.check()
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_block_within_another_notes_for_both():
    with listening() as outer, listening() as inner:
        os.kill(os.getpid(), signal.SIGINT)
        assert outer is inner
        assert outer.number == signal.SIGINT


def test_in_another_thread_nothing_is_noted_and_nothing_breaks():
    seen = []

    def look():
        with listening() as requests:
            requests.check()
            seen.append(requests.number)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [None]


def test_a_second_ctrl_c_does_not_wait(monkeypatch):
    times = iter([10.0, 10.1, 12.0])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(times))
    requests = signals.Requests()
    requests(signal.SIGINT, None)
    requests(signal.SIGINT, None)  # the same one, sent to the process and to its group
    with pytest.raises(KeyboardInterrupt):
        requests(signal.SIGINT, None)


def test_a_request_to_stop_is_no_phase_of_the_next_run():
    with listening() as requests:
        requests(signal.SIGTERM, None)
    seen = []
    with watching(seen.append), phase("evaluating"):
        pass
    assert seen == [("evaluating",), ()]
