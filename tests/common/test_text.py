from cigl.common.text import count, duration, percent


def test_durations():
    assert [duration(s) for s in (0, 61, 3600, 100 * 3600)] == ["0:00", "1:01", "1:00:00", "100:00:00"]


def test_shares_have_the_decimals_that_were_asked_for_or_those_they_were_given_with():
    assert [percent(s) for s in (0, 0.8, 0.999, 1)] == ["0 %", "80 %", "99.9 %", "100 %"]
    assert [percent(s, 1) for s in (0.8, 0.68461)] == ["80.0 %", "68.5 %"]


def test_counts_are_singular_or_plural():
    assert [count(n, "sparsity", "sparsities") for n in (1, 2)] == ["1 sparsity", "2 sparsities"]
    assert [count(n, "run") for n in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
