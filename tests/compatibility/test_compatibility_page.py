"""docs/compatibility.md says what the cases say, and every case is one that a test runs."""

from collections import Counter

import pytest
from table import PAGE, cases, page

CASES = cases()


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(CASES), "run make compatibility"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.name}")
def test_a_case_is_one_line_of_the_table(case):
    assert case.outcome in ("works", "refused")
    assert case.kind
    assert case.name
    assert "\n" not in case.name + case.how
    assert case.how or case.outcome == "works", "say why it is refused"


def test_no_case_is_there_twice():
    assert max(Counter((case.kind, case.name) for case in CASES).values()) == 1
