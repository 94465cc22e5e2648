"""Keys of a run on a folder of images, where nobody has chosen them: by how many there are, and how large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cigl.common.errors import CiglError
from cigl.common.text import count, percent
from cigl.data import images_at
from cigl.data.splits.folder import VAL_SPLIT, scan
from cigl.data.splits.stream import usual_size

FEW = 5_000  # images, up to which a small network on small images learns more in less time


def suggested(dataset: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys, and a sentence on what is trained on and what was chosen; neither for data of another kind.

    ``given`` are the keys that have been chosen, which win: they decide what suits them.
    """
    if not isinstance(dataset, str) or (images := images_at(dataset)) is None:
        return {}, ""
    try:
        share = float(given.get("val_split", VAL_SPLIT))
    except (TypeError, ValueError) as error:
        raise CiglError(f"val_split is {given['val_split']!r}: give a number.", arguments=("val_split",)) from error
    tree = scan(images, share)
    number, side = len(tree.train.paths), usual_size(tree)
    few, is_sgd, tuned = number < FEW, given.get("optimizer") == "sgd", given.get("pretrained") is not None
    epochs = int(given.get("epochs", max(15, min(20 if tuned else 60, 30_000 // number))))
    batch_size = int(given.get("batch_size", max(1, min(16 if number < 1_000 else 64, number // 4))))
    keys = {
        "model": "convnet" if few and not tuned else "resnet18",
        "image_size": 128 if tuned else min(side, 64 if few else 128),
        "batch_size": batch_size,
        "epochs": epochs,
        "optimizer": "adamw",
        "lr": (0.02 if is_sgd else 0.002) / (4 if tuned else 1),
        "weight_decay": 5e-4 if is_sgd else 0.01,
        "schedule": "cosine",
        "warmup_epochs": epochs / 10,
    }
    if tuned and "method" not in given:  # weights that are good are taken away one by one
        keys |= {"method": "gmp", "update_every": max(1, epochs * (number // batch_size) // 40)}
    chosen = {name: value for name, value in keys.items() if name not in given}
    judged = f"{tree.judged_by}/" if tree.judged_by else f"{percent(share)} of each class, held out (--val-split)"
    about = (
        f"{count(number, 'image')} of {len(tree.classes)} classes to learn from, {len(tree.test.paths):,} to judge by "
        f"({judged})"
    )
    named = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
    )
    why = f"for {number:,} images of about {side} pixels"
    return chosen, f"{about}\nchosen {why}: {named.replace('_', '-')}" if chosen else about
