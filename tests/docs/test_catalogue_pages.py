"""Pages that list what the package has, list all of it."""

import re

from pages import PAGES

import cigl
from cigl.study.catalogue import SCALES


def test_the_table_of_methods_is_the_catalogue():
    head = PAGES["docs/methods.md"].read_text().split("## Notation")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", head, re.M)) == cigl.methods()


def test_the_readme_counts_the_methods():
    (count,) = re.findall(r"(\d+) methods with their equations", PAGES["README.md"].read_text())
    assert int(count) == len(cigl.methods())


def test_the_reference_has_every_public_name():
    reference = "".join(path.read_text() for path in sorted((PAGES["README.md"].parent / "docs" / "api").glob("*.md")))
    listed = set(re.findall(r"^::: ([\w.]+)$", reference, re.M))
    modules = {"calibrate", "data", "models", "runtime", "sparsify", "train"}
    assert {f"cigl.{name}" for name in cigl.__all__} - {f"cigl.{name}" for name in modules} <= listed


def test_every_scale_of_a_study_is_named():
    assert all(f"`--scale {scale}`" in PAGES["docs/studies.md"].read_text() for scale in SCALES)
