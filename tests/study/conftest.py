import pytest


@pytest.fixture(autouse=True)
def _events_of_each_start(monkeypatch):
    """Runs log to TensorBoard: each time that one is begun or resumed opens a file of its own."""
    monkeypatch.setenv("CIGL_LOG", "tensorboard")
