"""RigL and CigL side by side on MNIST-1D (generated here, nothing is downloaded): accuracy and calibration.

Usage: python examples/demo.py [--sparsity 0.8] [--seeds 3]
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F
from mnist1d.data import get_dataset_args, make_dataset
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import cigl

EPOCHS, BATCH = 60, 64


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """4,000 training and 10,000 test examples of 40 numbers each, in ten classes."""
    settings = get_dataset_args()
    settings.num_samples, settings.train_split = 14_000, 4_000 / 14_000
    made = make_dataset(settings)
    x, x_test = (torch.tensor(made[key], dtype=torch.float32) for key in ("x", "x_test"))
    return x, torch.tensor(made["y"]), x_test, torch.tensor(made["y_test"])


def train(method: str, sparsity: float, seed: int, x: Tensor, y: Tensor, tick) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = len(x) // BATCH
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 3, 2 * EPOCHS // 3], gamma=0.5)
    sparse = cigl.attach(
        model, optimizer, method, sparsity=sparsity, epochs=EPOCHS, steps_per_epoch=steps, update_every=50, seed=seed
    )
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x))[: steps * BATCH].split(BATCH):
            loss = F.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decay.step()
        tick()
    return sparse.finalize().eval()


@torch.no_grad()
def scores(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    logits = model(x)
    confidence, guess = logits.softmax(1).max(1)
    correct = (guess == y).float()
    bins = (confidence * 15).ceil().long()
    gaps = torch.zeros(16).index_add(0, bins, confidence - correct)
    return {
        "accuracy": correct.mean().item(),
        "NLL": F.cross_entropy(logits, y).item(),
        "ECE": (gaps.abs().sum() / len(y)).item(),
        "confidence - accuracy": (confidence - correct).mean().item(),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sparsity", type=float, default=0.8, help="share of zeros (default: %(default)s)")
    arguments.add_argument("--seeds", type=int, default=3, help="runs per method (default: %(default)s)")
    options = arguments.parse_args()
    x, y, x_test, y_test = data()
    results: dict[str, list[dict[str, float]]] = {"rigl": [], "cigl": []}
    with Progress(transient=True) as progress:
        task = progress.add_task("training", total=2 * options.seeds * EPOCHS)
        for seed in range(options.seeds):
            for method, rows in results.items():
                progress.update(task, description=f"{method}, seed {seed}")
                model = train(method, options.sparsity, seed, x, y, lambda task=task: progress.advance(task))
                rows.append(scores(model, x_test, y_test))
    title = f"MNIST-1D, MLP 40-300-100-10, {options.sparsity:.0%} sparse, {options.seeds} seeds, 10,000 test examples"
    table = Table(title=title)
    table.add_column("method")
    for name in results["rigl"][0]:
        table.add_column(name + ("" if name == "NLL" else " [%]"), justify="right")
    for method, rows in results.items():
        cells = []
        for name in rows[0]:
            values = [row[name] * (1 if name == "NLL" else 100) for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.2f} ± {spread:.2f}")
        table.add_row(method, *cells)
    console = Console()
    console.print(table)
    console.print("mean ± standard deviation over seeds; ECE with 15 bins of equal width; lower NLL and ECE are better")


if __name__ == "__main__":
    main()
