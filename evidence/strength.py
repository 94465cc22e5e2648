"""The picture of docs/random-mask.md: gap and mask over the epochs of two runs.

cigl train --method cigl-auto --out long
cigl train --method cigl-auto --epochs 12 --out short
python evidence/strength.py docs/strength.png long short
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter


def main(picture: Path, *runs: Path) -> None:
    figure, places = plt.subplots(2, len(runs), figsize=(9, 4.2), sharex="col", sharey="row", squeeze=False)
    for (above, below), run in zip(places.T, runs, strict=True):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        epochs = [row["epoch"] for row in rows]
        above.axhline(0, color="0.6", lw=0.8)
        above.plot(epochs, [row["gap"] for row in rows], color="tab:red")
        below.plot(epochs, [row["mask_rate"] for row in rows], color="tab:blue")
        above.set_title(f"{len(rows)} epochs", fontsize=10)
        below.set_xlabel("epoch")
    for row, label in zip(places, ("confidence − accuracy", "weights that Z\nswitches off"), strict=True):
        row[0].set_ylabel(label)
        row[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.tight_layout()
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
