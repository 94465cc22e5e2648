"""Which steps run together, a band of rows after the other."""

import pytest

from cigl.runtime.program.interface import StepStruct, View
from cigl.runtime.program.steps import Kind
from cigl.runtime.training import bands

NOWHERE = View(-1, 0, 0, 0, 0, 0)
ROWS, ROW = 16, 1024


def value(at: int, rows: int = ROWS) -> View:
    return View(at * ROWS * ROW, ROW, 64, 4, rows, 16)


def step(kind: Kind, **views: View) -> StepStruct:
    struct = StepStruct(
        kind=kind, in_=NOWHERE, add=NOWHERE, out=NOWHERE, normed=NOWHERE, multiplier=NOWHERE, other=NOWHERE
    )
    for name, view in views.items():
        setattr(struct, name, view)
    return struct


def layer() -> list[StepStruct]:
    """A sum into value 1, a convolution of it into 2, the statistics of that."""
    return [
        step(Kind.AFFINE, in_=value(0), out=value(1)),
        step(Kind.CONV, in_=value(1), out=value(2)),
        step(Kind.STATISTICS, in_=value(2)),
    ]


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    monkeypatch.setattr(bands, "_CACHE", 9 * ROW * 4)  # four rows of two values


def test_a_kernel_of_three_rows_has_its_input_a_row_ahead():
    steps = layer()
    bands.set_bands(steps, {1: (1, 1)})
    assert [s.banded for s in steps] == [3, 0, 0]
    assert [s.band for s in steps] == [4, 4, 4]
    assert [s.lead for s in steps] == [1, 0, 0]
    assert [s.rolling for s in steps] == [0, 4, 1]  # not what is read around its own place


def test_what_is_read_at_its_own_place_rolls_unless_somebody_reads_it_later():
    steps = layer()
    bands.set_bands(steps, {})
    assert [s.lead for s in steps] == [0, 0, 0]
    assert [s.rolling for s in steps] == [4, 1 | 4, 1]
    steps = [*layer(), step(Kind.MEAN, in_=value(2), out=value(9, rows=1))]
    bands.set_bands(steps, {})
    assert [s.rolling for s in steps] == [4, 1, 0, 0]


def test_kept_values_do_not_roll():
    steps = layer()
    steps[1].kept, steps[2].kept = 4, 1
    bands.set_bands(steps, {})
    assert [s.rolling for s in steps] == [4, 1, 0]


@pytest.mark.parametrize(
    "last",
    [
        step(Kind.AFFINE, in_=value(3), out=value(1)),  # other rows of it are still to be read
        step(Kind.AFFINE, in_=value(3), out=View(value(2).at + 8 * ROW, *([ROW, 64, 4, ROWS, 16]))),  # overlaps
        step(Kind.AFFINE, in_=value(3, rows=8), out=value(4, rows=8)),
        step(Kind.CONV, in_=value(2), out=value(4), stride=(2, 2)),
        step(Kind.MAX_POOL, in_=value(2), out=value(4)),
        step(Kind.STATISTICS, in_=value(2), per_batch=1),
    ],
)
def test_what_does_not_go_by_the_same_rows_begins_another_run(last):
    steps = [*layer(), last]
    bands.set_bands(steps, {1: (1, 1)})
    assert [s.banded for s in steps] == [3, 0, 0, 0]


def test_a_value_may_be_changed_in_place():
    steps = [*layer(), step(Kind.MASK, in_=value(2), add=value(0), out=value(2))]
    bands.set_bands(steps, {1: (1, 1)})
    assert steps[0].banded == 4


def test_small_values_are_not_cut():
    steps = [
        step(Kind.AFFINE, in_=value(0, rows=4), out=value(1, rows=4)),
        step(Kind.CONV, in_=value(1, rows=4), out=value(2, rows=4)),
    ]
    bands.set_bands(steps, {})
    assert not any(s.banded for s in steps)
