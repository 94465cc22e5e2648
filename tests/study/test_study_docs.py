"""The example in docs/studies.md is a study that runs."""

import re
from pathlib import Path

import yaml

from cigl.study.catalogue import SCALES
from cigl.study.grid import Study, cells

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()


def test_the_example_is_a_study():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    study = Study.of(yaml.safe_load(text))
    assert len(cells(study)) == 3 * (1 + 4 * 2)


def test_every_scale_is_named():
    assert all(f"`--scale {scale}`" in PAGE for scale in SCALES)
