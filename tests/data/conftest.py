import pytest


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path, monkeypatch):
    """Each test has its own cache folder, and no proxy stands before this machine's own server."""
    monkeypatch.setenv("CIGL_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
