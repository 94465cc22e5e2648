"""Dense, RigL and CigL on MNIST-1D (generated here, nothing is downloaded): accuracy and calibration.

Trains three seeds of each in two processes, prints a table, and writes a page with the reliability diagrams.
What was trained before is not trained again. Usage: python examples/demo.py [--sparsity 0.8] [--seeds 3]
"""

from __future__ import annotations

import argparse
import html
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from cigl.train.config import Config
from cigl.train.folder import RunFolder

SHOWN = {"accuracy": ("accuracy [%]", 100), "nll": ("NLL", 1), "ece_15": ("ECE, 15 bins [%]", 100)}


def run(config: Config, folder: Path) -> dict[str, Any]:
    """One training, on one thread."""
    import torch

    from cigl.train.run import resume, train

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return resume(folder) if RunFolder(folder).is_started else train(config, folder)


def train_all(configs: dict[tuple[str, int], Config], out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    results = {}
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with ProcessPoolExecutor(2, get_context("spawn")) as pool, Progress(*columns) as progress:
        task = progress.add_task("training", total=len(configs))
        jobs = {pool.submit(run, config, out / config.digest()): key for key, config in configs.items()}
        for job in as_completed(jobs):
            results[jobs[job]] = job.result()
            progress.advance(task)
    return results


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.2f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sparsity", type=float, default=0.8, help="share of zeros (default: %(default)s)")
    arguments.add_argument("--seeds", type=int, default=3, help="runs per method (default: %(default)s)")
    arguments.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder (default: %(default)s)")
    options = arguments.parse_args()
    methods = {"dense": 0.0, "rigl": options.sparsity, "cigl": options.sparsity}
    configs = {
        (method, seed): Config(method=method, sparsity=sparsity, seed=seed)
        for method, sparsity in methods.items()
        for seed in range(options.seeds)
    }
    results = train_all(configs, options.out)
    rows = []
    for method, sparsity in methods.items():
        tests = [results[method, seed]["test"]["report"] for seed in range(options.seeds)]
        cells = [spread([test[key]["value"] * factor for test in tests]) for key, (_, factor) in SHOWN.items()]
        rows.append([method, f"{sparsity:.0%}", *cells])
    base = Config()
    title = (
        f"MNIST-1D, {base.model}, {base.epochs} epochs, {options.seeds} seeds, 10,000 test examples; "
        "mean ± standard deviation"
    )
    heads = ["method", "zeros", *(name for name, _ in SHOWN.values())]
    table = Table(*heads, title=title, title_style="")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    page = write_page(options.out, title, heads, rows, {m: options.out / configs[m, 0].digest() for m in methods})
    console.print(f"lower NLL and ECE are better; reliability diagrams: {page}")


def write_page(out: Path, title: str, heads: list[str], rows: list[list[str]], folders: dict[str, Path]) -> Path:
    """The table and the diagrams side by side, in one file that opens offline."""
    import cigl
    from cigl.calibrate import Report

    figure = out / "reliability.svg"
    cigl.reliability_diagrams({name: Report.from_json(path / "report.json") for name, path in folders.items()}, figure)
    drawing = figure.read_text()
    drawing = drawing[drawing.index("<svg") :]
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    page = out / "index.html"
    page.write_text(f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>cigl demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
td, th {{ padding: .3rem 1rem; border-bottom: 1px solid #ccc; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}
svg {{ width: 100%; height: auto }}
</style>
<h1>Sparse, and honest about its confidence?</h1>
<p>{html.escape(title)}.</p>
<table><tr>{"".join(f"<th>{html.escape(head)}</th>" for head in heads)}</tr>{cells}</table>
<p>Reliability diagrams of seed 0: where the bars lie below the diagonal, the model is more confident than right.</p>
{drawing}
</html>
""")
    return page


if __name__ == "__main__":
    main()
