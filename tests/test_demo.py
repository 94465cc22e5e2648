"""The demo's claim, in full: CigL's confidence fits, at the accuracy of RigL."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


@pytest.mark.slow
def test_cigl_calibrates_at_the_accuracy_of_rigl():
    import demo

    x, y, x_test, y_test = demo.data()
    assert (len(x), len(x_test)) == (4_000, 10_000)
    scores = {
        method: demo.scores(demo.train(method, 0.8, 7, x, y, lambda: None), x_test, y_test)
        for method in ("rigl", "cigl")
    }
    assert scores["cigl"]["ECE"] < 0.5 * scores["rigl"]["ECE"]
    assert scores["cigl"]["NLL"] < scores["rigl"]["NLL"]
    assert scores["cigl"]["accuracy"] > scores["rigl"]["accuracy"] - 0.02
