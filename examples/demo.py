"""Dense, RigL and CigL on MNIST-1D (generated here, nothing is downloaded): accuracy and calibration.

Trains three seeds of each in two processes, prints a table, and writes a page with a reliability diagram of each.
What was trained before is not trained again. Usage: python examples/demo.py [--sparsity 0.8] [--seeds 3]
"""

from __future__ import annotations

import argparse
import html
import os
import statistics
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder

SHOWN = {"accuracy": ("accuracy [%]", 100), "ece_15": ("ECE, 15 bins [%]", 100), "nll": ("NLL", 1)}


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
        jobs = {pool.submit(run, config, folder(out, config)): key for key, config in configs.items()}
        for job in as_completed(jobs):
            results[jobs[job]] = job.result()
            progress.advance(task)
    return results


def folder(out: Path, config: Config) -> Path:
    """Of a run; the end changes with whatever else is in its configuration."""
    return out / f"{config.method}-{100 * config.sparsity:.6g}-seed-{config.seed}-{config.digest()[:6]}"


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
    numbers = {
        method: {
            key: [results[method, seed]["test"]["report"][key]["value"] for seed in range(options.seeds)]
            for key in SHOWN
        }
        for method in methods
    }
    rows = []
    for method, sparsity in methods.items():
        cells = [spread([value * factor for value in numbers[method][key]]) for key, (_, factor) in SHOWN.items()]
        rows.append([method, f"{100 * sparsity:.6g} %", *cells])
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
    found = finding(numbers, options.sparsity)
    commands = next_commands(folder(options.out, configs["cigl", 0]))
    folders = {
        (method, seed): folder(options.out, configs[method, seed])
        for method in methods
        for seed in [typical(numbers[method]["ece_15"])]
    }
    page = write_page(options.out, found, title, (heads, rows), folders, commands)
    console.print(f"{found}\n\nThe page with the reliability diagrams: {page}\nNext:", highlight=False)
    for command, what in commands.items():
        console.print(f"  {command}  # {what}", highlight=False, soft_wrap=True)


def typical(values: list[float]) -> int:
    """The seed whose number is nearest to the mean."""
    mean = statistics.mean(values)
    return min(range(len(values)), key=lambda seed: abs(values[seed] - mean))


def finding(numbers: dict[str, dict[str, list[float]]], sparsity: float) -> str:
    """What the numbers say, whatever they are: another sparsity, or one seed, may show something else."""
    ece, accuracy = (
        {method: 100 * statistics.mean(found[key]) for method, found in numbers.items()}
        for key in ("ece_15", "accuracy")
    )
    both = ece["cigl"] < min(ece["dense"], ece["rigl"]) and accuracy["cigl"] > accuracy["rigl"] - 1
    start = (
        "A network can be sparse and honest about its confidence."
        if both
        else "This time CigL is not better in both accuracy and ECE."
    )
    return (
        f"{start} With {100 * sparsity:.6g} % of the weights removed, CigL is right in {accuracy['cigl']:.1f} % of "
        f"cases, and its confidence is {ece['cigl']:.1f} points away from that on average (ECE). RigL, the usual way "
        f"to train sparse networks, has an accuracy of {accuracy['rigl']:.1f} % and an ECE of {ece['rigl']:.1f} %; "
        f"the dense network, {accuracy['dense']:.1f} % and {ece['dense']:.1f} %."
    )


def next_commands(run: Path) -> dict[str, str]:
    """As they can be pasted into the shell that ran the demo: the program lies beside this Python."""
    program = Path(sys.executable).parent / "cigl"
    here = Path.cwd()
    cigl = program.relative_to(here) if program.is_relative_to(here) else program
    return {
        f"{cigl} evaluate {run}": "all metrics of this CigL network, with intervals",
        f"{cigl} export {run} model.cigl": "one small file with the non-zeros; cigl.load runs it on sparse kernels",
        f"{cigl} train --sparsity 0.9": "train one yourself; --help shows your own images and networks",
    }


ECE = (
    "ECE, the expected calibration error, sorts predictions by confidence and measures how far, on average, the "
    "confidence is from the share that is right. With an ECE of 20 %, a network that claims to be 90 % sure may be "
    "right in only 70 % of such cases; 0 is perfect."
)
READING = (
    "Reliability diagrams, each of the seed whose ECE is nearest to the mean of all. A bar is the accuracy of the "
    "predictions with that confidence; the hatched part "
    "shows how far the confidence is away from it. Bars that end on the dashed line are perfect, bars below it show "
    "over-confidence. Hover over or tap a bar for its numbers; with the keyboard, use Tab and the arrow keys."
)
LOOKS = {"dense": ("Dense", "ink"), "rigl": ("RigL", "blue"), "cigl": ("CigL", "red")}


def shown(report: Any) -> dict[str, Any]:
    """What a diagram shows, in its corner the numbers as the text has them."""
    from cigl.calibrate import prepare_reliability_diagram
    from cigl.common.text import percent

    corner = [f"ECE {percent(report.ece, 1)}", f"accuracy {percent(report.accuracy, 1)}"]
    return prepare_reliability_diagram(report) | {"text": corner}


def write_page(
    out: Path,
    found: str,
    title: str,
    table: tuple[list[str], list[list[str]]],
    folders: dict[tuple[str, int], Path],
    commands: dict[str, str],
) -> Path:
    """One file that opens offline: what was found, a diagram per method, the table, and what to do next."""
    from cigl import __version__
    from cigl.calibrate import Report
    from cigl.common.files import write
    from cigl.report.figures.drawing import Chart, diagram
    from cigl.report.figures.interactive import At, interactive
    from cigl.report.page.layout import document

    heads, rows = table
    cells = [
        f'<td class="text">{html.escape(name)}</td>' + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        for name, *rest in rows
    ]
    titles = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads[1:])
    panels = []
    for (method, seed), path in folders.items():
        name, color = LOOKS[method]
        panels.append(diagram(f"{name}, seed {seed}", shown(Report.from_json(path / "report.json")), color))
    drawn = interactive(Chart(panels), At("demo"))
    readme = os.path.relpath(Path(__file__).resolve().parents[1] / "README.md", out.resolve())
    next_ = "".join(
        f"<li>{html.escape(what[0].upper() + what[1:])}:<pre>{html.escape(command)}</pre></li>"
        for command, what in commands.items()
    )
    body = f"""<header><p><a href="{html.escape(readme)}"><strong>cigl</strong></a> {__version__}, the demo</p></header>
<main>
<h1>Sparse, and honest about its confidence</h1>
<p class="lead">{html.escape(found)}</p>
<p>{ECE}</p>
<figure>{drawn}<figcaption>{READING}</figcaption></figure>
<h2>The numbers</h2>
<div class="scroll" tabindex="0" role="region" aria-label="The numbers"><table>
<thead><tr><th scope="col" class="text">{html.escape(heads[0])}</th>{titles}</tr></thead>
<tbody>{"".join(f"<tr>{row}</tr>" for row in cells)}</tbody></table></div>
<p class="reading">{html.escape(title)}. Lower NLL and ECE are better, and higher accuracy.</p>
<h2>What to do next</h2>
<ul class="next">{next_}<li>In your own training loop, it is two lines: <code>cigl.attach</code> before it and
<code>finalize</code> after it; <a href="{html.escape(readme)}">README.md</a> shows them.</li></ul>
</main>"""
    page = out / "index.html"
    write(page, document("cigl demo", body).encode())
    return page


if __name__ == "__main__":
    main()
