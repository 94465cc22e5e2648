"""What people read: names, numbers and times in sentences, everywhere in the same form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def one_line(error: BaseException, longest: int = 300) -> str:
    """What another library's error says, for the end of a sentence of ours.

    >>> one_line(RuntimeError("sizes\\n  don't match."))
    "sizes don't match"
    """
    return (" ".join(str(error).split()) or type(error).__name__)[:longest].removesuffix(".")


def printable(name: str) -> str:
    """What can be shown of a name, for example of a file's, which may hold anything."""
    return "".join(letter if letter.isprintable() else "�" for letter in name)


def first_line(error: BaseException, longest: int | None = None) -> str:
    """What stands first where another library's error says a lot.

    >>> first_line(RuntimeError("sizes don't match\\nat line 3")), first_line(RuntimeError())
    ("sizes don't match", 'RuntimeError')
    """
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:longest]


def listed(names: Iterable[object], most: int = 3) -> str:
    """Names for a sentence, not more than a few of them.

    >>> listed(["cat"]), listed(["a", "b"]), listed("abcdefg")
    ("'cat'", "'a' and 'b'", "'a', 'b', 'c' and 4 more")
    """
    quoted = [repr(name) for name in names]
    if len(quoted) > most + 1:
        quoted = [*quoted[:most], f"{len(quoted) - most} more"]
    return joined(quoted)


def joined(parts: Sequence[str]) -> str:
    """
    >>> joined(["one"]), joined(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def percent(share: float, decimals: int | None = None) -> str:
    """With so many decimals, which suits what was measured; without, as exact as it was given.

    >>> percent(0.6846, 1), percent(0.9, 1), percent(0.9), percent(0.999)
    ('68.5 %', '90.0 %', '90 %', '99.9 %')
    """
    return f"{100 * share:.6g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def count(number: int, one: str, more: str = "") -> str:
    """
    >>> count(1, "snapshot"), count(1200, "step"), count(3, "sparsity", "sparsities")
    ('1 snapshot', '1,200 steps', '3 sparsities')
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(59.4), duration(754), duration(7260), duration(180_000)
    ('0:59', '12:34', '2:01:00', '50:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percents(sparsities: Sequence[float]) -> str:
    """
    >>> percents([0.8, 0.9, 0.999]), percents([0.9])
    ('80, 90 and 99.9 %', '90 %')
    """
    *others, last = (f"{100 * sparsity:.6g}" for sparsity in sparsities)
    return (f"{', '.join(others)} and {last}" if others else last) + " %"


def signed(value: float, decimals: int) -> str:
    """
    >>> signed(-0.5, 2), signed(0.0, 1)
    ('−0.50', '+0.0')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def span(values: Sequence[float], form: str) -> str:
    """
    >>> span([1.2, -0.3], "{:+.1f}"), span([2.0], "{:.0f}")
    ('−0.3 to +1.2', '2')
    """
    low, high = (form.format(value).replace("-", "−") for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def confidence(rate: float, gap: float | None) -> str:
    """For people who look at a training: how much is switched off, and how confident the network is.

    >>> confidence(0.042, 0.021), confidence(0.0, -0.034), confidence(0.0, None)
    ('mask 4 %, over-confident by 2 points', 'mask 0 %, under-confident by 3 points', 'mask 0 %')
    """
    mask = f"mask {100 * rate:.0f} %"
    if gap is None:
        return mask
    points = round(100 * abs(gap))
    side = "over" if gap > 0 else "under"
    how = f"{side}-confident by {points} point{'' if points == 1 else 's'}" if points else "as confident as accurate"
    return f"{mask}, {how}"
