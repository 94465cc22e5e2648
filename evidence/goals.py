"""The tables of docs/results.md on the rising mask, from results/rise and results/rise-conv: python evidence/goals.py.

Means and standard deviations over seeds; then, for each method with a rise, four goals: yes or no in each cell, against
the methods without a rise. "Yes" is about means; the interval says what chance could do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

RESULTS = Path(__file__).resolve().parent.parent / "results"
TITLES = {"rise": "MLP, Fashion-MNIST", "rise-conv": "wide ResNet, CIFAR-10"}
PLAIN = {  # predict as trained
    "rigl": "RigL", "rigl-annealed": "RigL, annealed", "cigl": "CigL (the paper's)", "cigl-pw": "CigL, `p*W`",
    "cigl-mixup": "CigL with mixup 0.2", "cigl-rise": "CigL, rising Z", "cigl-rise-mixup": "CigL, rising Z, mixup 0.1",
}  # fmt: skip
PILOT = "-pilot"


class Entry(NamedTuple):
    """A row of the table: a method, and whether its temperature is applied."""

    method: str
    scaled: bool

    def __str__(self) -> str:
        held_out = self.scaled and not self.method.endswith(PILOT)
        name = PLAIN[self.method.removesuffix(PILOT)]
        return name + ", pilot temperature" * self.method.endswith(PILOT) + ", held-out temperature" * held_out


class Study:
    def __init__(self, name: str):
        data = json.loads((RESULTS / name / "data.json").read_text())
        self.runs, self.statistics = data["runs"], data["statistics"]
        self.sparsities = sorted({row["sparsity"] for row in self.runs})
        found = list(dict.fromkeys(row["method"] for row in self.runs))
        plain = [Entry(method, scaled=False) for method in PLAIN if method in found]
        held_out = [Entry(method, scaled=True) for method in PLAIN if method in found]
        pilots = [Entry(method + PILOT, scaled=True) for method in PLAIN if method + PILOT in found]
        self.entries = [*plain, *held_out, *pilots]

    def seeds(self, entry: Entry, sparsity: float, metric: str) -> np.ndarray:
        """A number per seed, in the order of seeds."""
        column = f"{metric}_temperature" if entry.scaled else metric
        rows = [row for row in self.runs if (row["method"], row["sparsity"]) == (entry.method, sparsity)]
        return np.array([row[column] for row in sorted(rows, key=lambda row: row["seed"])])

    def statistic(self, entry: Entry, sparsity: float, metric: str, of: str) -> dict[str, Any]:
        wanted = {"method": entry.method, "sparsity": sparsity, "metric": metric, "of": of}
        wanted["temperature_scaled"] = entry.scaled
        return next(row for row in self.statistics if wanted.items() <= row.items())

    def best(self, entries: Iterable[Entry], sparsity: float, metric: str) -> Entry:
        return min(entries, key=lambda entry: self.seeds(entry, sparsity, metric).mean())


def difference(study: Study, one: Entry, other: Entry, sparsity: float, metric: str) -> tuple[float, float, float]:
    """Mean and 95 % interval of the difference, paired by seed."""
    pairs = study.seeds(one, sparsity, metric) - study.seeds(other, sparsity, metric)
    reach = stats.t.ppf(0.975, len(pairs) - 1) * pairs.std(ddof=1) / np.sqrt(len(pairs))
    return pairs.mean(), pairs.mean() - reach, pairs.mean() + reach


def spread(values: np.ndarray, digits: int) -> str:
    """The mean, and the standard deviation over seeds."""
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def interval(low: float, high: float, digits: int) -> str:
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def verdict(reached: bool) -> str:
    return "yes" if reached else "**no**"


def accuracy_goal(study: Study, method: str, sparsity: float) -> str:
    row = study.statistic(Entry(method, scaled=False), sparsity, "accuracy", "difference to rigl")
    value, low, high = (100 * row[name] for name in ("value", "low", "high"))
    return f"{verdict(value >= 0)}: {signed(value, 2)} {interval(low, high, 2)}"


def ece_goal(study: Study, method: str, sparsity: float) -> str:
    row = study.statistic(Entry(method, scaled=False), sparsity, "ece_15", "mean")
    share = row["value"] / study.seeds(Entry("cigl", scaled=False), sparsity, "ece_15").mean()
    at_floor = bool(row["value"] <= row["floor"])
    return f"{verdict(bool(share <= 0.5) or at_floor)}: {share:.2f}{' (noise floor)' if at_floor else ''}"


def lowest_goal(study: Study, entry: Entry, sparsity: float, metric: str) -> str:
    """Against the methods without a rise: of those without held-out data for a plain entry, else of all."""
    others = [each for each in study.entries if "rise" not in each.method and (entry.scaled or not each.scaled)]
    best = study.best(others, sparsity, metric)
    value, low, high = difference(study, entry, best, sparsity, metric)
    return f"{verdict(value <= 0)}: {signed(value, 3)} {interval(low, high, 3)} ({best})"


def table(title: str, study: Study, rows: dict[str, Callable[[float], str]]) -> None:
    print(f"| {title} | " + " | ".join(f"{100 * sparsity:g} %" for sparsity in study.sparsities) + " |")
    print("|---" * (len(study.sparsities) + 1) + "|")
    for name, cell in rows.items():
        print(f"| {name} | " + " | ".join(cell(sparsity) for sparsity in study.sparsities) + " |")
    print()


def means(study: Study, entry: Entry) -> Callable[[float], str]:
    def cell(sparsity: float) -> str:
        accuracy, ece, nll = (study.seeds(entry, sparsity, metric) for metric in ("accuracy", "ece_15", "nll"))
        return f"{spread(100 * accuracy, 1)} / {spread(ece, 3)} / {spread(nll, 3)}"

    return cell


def goals(study: Study, method: str) -> dict[str, Callable[[float], str]]:
    plain, pilot = Entry(method, scaled=False), Entry(method + PILOT, scaled=True)
    rows: dict[str, Callable[[float], str]] = {
        "accuracy − RigL's, points, not below": lambda s: accuracy_goal(study, method, s),
        "ECE / the paper's CigL's, at most half, or at the noise floor": lambda s: ece_goal(study, method, s),
        "NLL − the lowest without held-out data": lambda s: lowest_goal(study, plain, s, "nll"),
    }
    if pilot in study.entries:
        rows["with a pilot: NLL − the lowest of all"] = lambda s: lowest_goal(study, pilot, s, "nll")
        rows["with a pilot: ECE − the lowest of all"] = lambda s: lowest_goal(study, pilot, s, "ece_15")
    return rows


def main() -> None:
    for name, title in TITLES.items():
        study = Study(name)
        rows = {str(entry): means(study, entry) for entry in study.entries}
        table(f"{title}: accuracy (%) / ECE / NLL", study, rows)
        for method in ("cigl-rise", "cigl-rise-mixup"):
            if Entry(method, scaled=False) in study.entries:
                table(f"{title}: {Entry(method, scaled=False)}, the goals", study, goals(study, method))


if __name__ == "__main__":
    main()
