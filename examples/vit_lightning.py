"""A vision transformer on Fashion-MNIST with Lightning, 90 % sparse: accuracy and calibration on the test images.

Needs pip install 'cigl[lightning]'. Usage: python examples/vit_lightning.py [--method cigl] [--epochs 5]
"""

from __future__ import annotations

import argparse
import warnings

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cigl
import cigl.data
from cigl.integrations.lightning import CigLCallback


class ViT(LightningModule):
    """16 patches of 7x7 pixels, a class token, and a few pre-norm encoder blocks (Dosovitskiy et al. 2021)."""

    def __init__(self, width: int = 96, depth: int = 3, heads: int = 4, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.patches = nn.Conv2d(1, width, kernel_size=7, stride=7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.position
        return self.head(self.blocks(tokens)[:, 0])

    def training_step(self, batch: tuple[Tensor, Tensor], place: int) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def images(split: cigl.data.Split) -> TensorDataset:
    return TensorDataset(*map(torch.cat, zip(*split.batches(1000), strict=True)))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--method", default="cigl", help="a name from cigl.methods() (default: %(default)s)")
    arguments.add_argument("--sparsity", type=float, default=0.9, help="share of zeros (default: %(default)s)")
    arguments.add_argument("--epochs", type=int, default=5, help="(default: %(default)s)")
    options = arguments.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    seed_everything(0)
    cigl.data.get("fashion-mnist")
    source = cigl.data.open("fashion-mnist")
    train, test = images(source.train), images(source.test)
    model = ViT()
    callback = CigLCallback(options.method, sparsity=options.sparsity, layers={"head": False})
    trainer = Trainer(
        max_epochs=options.epochs,
        gradient_clip_val=1.0,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, batch_size=128, shuffle=True, drop_last=True))
    weights = [model.patches.weight, *(p for p in model.blocks.parameters() if p.dim() == 2)]
    zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
    report = cigl.evaluate(model, DataLoader(test, batch_size=500))
    print(f"zeros {zeros:.3f}  accuracy {report.accuracy:.4f}  ECE {report.ece_15:.4f}")


if __name__ == "__main__":
    main()
