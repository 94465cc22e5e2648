"""docs/calibration.md runs and prints what it says (up to what depends on rounding)."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "calibration.md"


@pytest.mark.slow
def test_the_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = DOCS.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    shown = "".join(re.findall(r"```\n((?:1000 samples|a - b on).*?)```", text, re.S)).splitlines()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, str(DOCS), "exec"), {})
    printed = output.getvalue().splitlines()
    assert [line.split()[:1] for line in printed] == [line.split()[:1] for line in shown]
    assert (tmp_path / "reliability.png").stat().st_size > 1000


def test_every_name_exists():
    import cigl

    for name in set(re.findall(r"cigl\.calibrate\.(\w+)\(", DOCS.read_text())):
        assert hasattr(cigl.calibrate, name), name


def test_the_example_of_a_metric():
    import torch

    import cigl
    from cigl.calibrate.registry import METRICS

    code = next(each for each in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "register(" in each)
    names = {"cigl": cigl, "logits": torch.randn(50, 3), "labels": torch.arange(50) % 3}
    try:
        exec(compile(code, str(DOCS), "exec"), names)
    finally:
        METRICS.pop("entropy", None)
    assert 0 < names["report"].entropy < 1.1
