"""make evidence-check: run one cell of each study again with a new seed, and compare it with the committed seeds.

Fails if a number lies outside its prediction interval. The intervals are so wide that an honest run passes all of
them together 99 times in 100.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from cigl.study.work import do_order
from cigl.train.config import Config

RESULTS = Path(__file__).resolve().parent.parent / "results"
MLP, THIN, WIDE = "fashion-mnist-mlp", "cifar10-wrn-10-1-half", "cifar10-wrn-10-2-half"
CELLS = {  # of each study: setting, method and sparsity
    "main": (MLP, "cigl", 0.9),
    "dropout": (MLP, "rigl-mcdp", 0.9),
    "calibrators": (MLP, "rigl-ls", 0.95),
    "ablation": (MLP, "cigl-no-rm", 0.95),
    "double-descent": (MLP, "rigl", 0.99),
    "mask-correlation": (MLP, "cigl", 0.8),
    "main-conv": (THIN, "cigl", 0.9),
    "dropout-conv": (THIN, "rigl-mcdp", 0.9),
    "calibrators-conv": (THIN, "rigl-ls", 0.9),
    "ablation-conv": (THIN, "cigl-no-rm", 0.9),
    "double-descent-conv": (THIN, "rigl", 0.95),
    "mask-correlation-conv": (THIN, "cigl", 0.8),
    "mask-rates": (WIDE, "cigl-1", 0.95),
    "rise": (MLP, "cigl-rise", 0.9),
    "rise-conv": (THIN, "cigl-rise", 0.9),
}
MASKS = 5  # drawn in mask-correlation
PASSES = 0.99  # of honest checks
Row = dict[str, Any]
Place = tuple[str, str, float]
Cells = dict[Place, list[Row]]  # the runs of a study


class Interval(NamedTuple):
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, float) and self.low <= value <= self.high


def prediction(cell: Sequence[float], others: Iterable[Sequence[float]], alpha: float) -> Interval:
    """Where one more seed of ``cell`` falls with probability 1 - alpha.

    Three seeds estimate their spread badly, so that the spread of other cells is pooled with it; where the cell's own
    is larger, that counts.
    """
    groups = [cell, *others]
    freedom = sum(len(group) - 1 for group in groups)
    pooled = sum(_squares(group) for group in groups) / freedom
    own = _squares(cell) / (len(cell) - 1)
    spread = math.sqrt(max(pooled, own) * (1 + 1 / len(cell)))
    reach = float(stats.t.ppf(1 - alpha / 2, freedom)) * spread
    centre = sum(cell) / len(cell)
    return Interval(centre - reach, centre + reach)


def _squares(values: Sequence[float]) -> float:
    centre = sum(values) / len(values)
    return sum((value - centre) ** 2 for value in values)


def numbers(row: Row) -> dict[str, float]:
    """What is compared of a run."""
    return {name: float(row[name]) for name in ("accuracy", "ece_15", "accuracy_ZW") if name in row}


def committed(study: str) -> Cells:
    groups = defaultdict(list)
    for row in json.loads((RESULTS / study / "data.json").read_text())["runs"]:
        groups[row["setting"], row["method"], row["sparsity"]].append(row)
    return groups


def neighbours(cells: Cells, place: Place) -> list[list[Row]]:
    """The other cells of the same setting, of this sparsity and of the next ones: the spread grows with sparsity."""
    setting, _, sparsity = place
    levels = sorted({level for where, _, level in cells if where == setting})
    middle = levels.index(sparsity)
    near = levels[max(middle - 1, 0) : middle + 2]
    return [rows for key, rows in cells.items() if key[0] == setting and key[2] in near and key != place]


def run_again(row: Row, seed: int, folder: Path) -> Row:
    """The same run with another seed."""
    config = Config.of(row["config"]).changed(seed=seed)
    outcome = do_order({"path": str(folder), "config": config.plain(), "masks": MASKS if "accuracy_ZW" in row else 0})
    if outcome["state"] != "done":
        sys.exit(f"the run failed: {outcome['message']}")
    report = json.loads((folder / "result.json").read_text())["test"]["report"]
    new = {name: report[name]["value"] for name in ("accuracy", "ece_15")}
    if "accuracy_ZW" in row:
        draws = json.loads((folder / "masks.json").read_text())["Z*W"]
        new["accuracy_ZW"] = sum(draws) / len(draws)
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000, help="one that is not among the committed ones")
    parser.add_argument("--only", choices=CELLS, action="append", help="check these studies only")
    arguments = parser.parse_args()
    groups = {study: committed(study) for study in arguments.only or CELLS}
    tests = sum(len(numbers(groups[study][CELLS[study]][0])) for study in groups)
    outside = 0
    for study, cells in groups.items():
        setting, method, sparsity = CELLS[study]
        rows = cells[CELLS[study]]
        if arguments.seed in [row["seed"] for row in rows]:
            sys.exit(f"seed {arguments.seed} is a committed one: choose another with --seed.")
        print(f"{study}: {setting}, {method} at {sparsity:.1%}, seed {arguments.seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            new = numbers(run_again(rows[0], arguments.seed, Path(folder) / "run"))
        for name, value in new.items():
            own = [numbers(row)[name] for row in rows]
            others = [[numbers(row)[name] for row in group] for group in neighbours(cells, CELLS[study])]
            interval = prediction(own, others, (1 - PASSES) / tests)
            fits = value in interval
            outside += not fits
            place = f"{'lies in' if fits else 'LIES OUTSIDE'} {interval.low:.4f} to {interval.high:.4f}"
            seeds = ", ".join(f"{number:.4f}" for number in own)
            print(f"  {name}: {value:.4f} {place} (committed: {seeds})", flush=True)
    sys.exit(f"{outside} of {tests} numbers lie outside: the code or the results have changed." if outside else 0)


if __name__ == "__main__":
    main()
