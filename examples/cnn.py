"""A convolutional network in a plain loop: digits of 8x8 pixels, 90 % zeros, saved and run on sparse kernels.

Needs pip install scikit-learn, which brings the images. Usage: python examples/cnn.py [--method cigl] [--epochs 30]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import cigl


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--method", default="cigl", help="a name from cigl.methods() (default: %(default)s)")
    arguments.add_argument("--sparsity", type=float, default=0.9, help="share of zeros (default: %(default)s)")
    arguments.add_argument("--epochs", type=int, default=30, help="(default: %(default)s)")
    options = arguments.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    train, test = random_split(TensorDataset(images, torch.tensor(digits.target)), (1200, 597))
    loader = DataLoader(train, batch_size=60, shuffle=True)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    steps = len(loader)
    sparse = cigl.attach(
        model, optimizer, options.method, sparsity=options.sparsity, epochs=options.epochs, steps_per_epoch=steps,
        update_every=steps,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * steps)
    for epoch in range(options.epochs):
        for x, y in loader:  # a loop like any other
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}  loss {loss.item():.3f}")
    final = sparse.finalize(loader).eval()

    print(cigl.evaluate(final, DataLoader(test, batch_size=199)))
    path = Path(tempfile.mkdtemp()) / "digits.cigl"
    cigl.save(final, path)
    fast = cigl.load(path)
    same = torch.allclose(fast(images[:8]), final(images[:8]), atol=1e-4)
    dense = sum(each.nbytes for each in final.state_dict().values())
    print(f"{path}: {path.stat().st_size:,} bytes, {dense:,} dense; the engine computes the same: {same}")


if __name__ == "__main__":
    main()
