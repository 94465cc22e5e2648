"""Run folders as training leaves them, from simulated predictions: a study in a second."""

import json
import zlib

import numpy as np

from cigl.calibrate import report
from cigl.study.grid import Study, cells
from cigl.study.store import StudyFolder

METHODS = {
    "dense": {"method": "dense", "sparsity": 0.0},
    "rigl": {"method": "rigl"},
    "cigl": {"method": "cigl"},
    "rigl-mixup": {"method": "rigl", "mixup": 0.2},
    "rigl-ls": {"method": "rigl", "label_smoothing": 0.1},
}
OVERCONFIDENCE = {"dense": 1.5, "rigl": 2.0, "cigl": 1.2, "rigl-mixup": 1.1, "rigl-ls": 0.8}
LABELS = {"dense": "Dense", "rigl": "RigL", "cigl": "CigL", "rigl-mixup": "RigL + mixup", "rigl-ls": "RigL + LS"}


def a_study(name="main", methods=("dense", "rigl", "cigl"), sparsity=(0.8, 0.9, 0.95), seeds=(0, 1), **more):
    chosen = {method: METHODS[method] for method in methods}
    shared = {"preset": "mnist1d-mlp", "validation": 0.1, "temperature": "holdout"}
    keys = {"settings": {"small": shared}, "labels": LABELS} | more
    return Study(name, methods=chosen, sparsity=sparsity, seeds=seeds, **keys)


def predictions(cell, n):
    """The same test points for all; the method makes the over-confidence, the sparsity and the seed vary it."""
    shared = np.random.default_rng(1)
    true = 2.5 * shared.normal(size=(n, 4))
    chances = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (chances.cumsum(1) > shared.random((n, 1))).argmax(1)
    own = np.random.default_rng(zlib.crc32(repr((cell.method, cell.sparsity, cell.seed)).encode()))
    noise = (0.2 + cell.sparsity / 2) * own.normal(size=true.shape)
    return OVERCONFIDENCE.get(cell.method, 1.5) * (1 + 0.1 * own.normal()) * (true + noise), labels


def finish(folder, cell, n=300, masks=False, other_test_data=False):
    logits, labels = predictions(cell, n)
    if other_test_data:
        labels = labels[::-1].copy()
    path = folder.runs / cell.digest
    path.mkdir(parents=True)
    temperature = 1.4
    reports = {
        "report": report(logits=logits, labels=labels),
        "report-temperature": report(logits=logits / temperature, labels=labels),
    }
    for name, one in reports.items():
        one.to_json(path / f"{name}.json")
    result = {
        "config": cell.config.plain(), "digest": cell.digest, "versions": {"cigl": "0.1.0", "torch": "2.6.0"},
        "temperature": temperature, "density": 1 - cell.sparsity, "explored": 0.5,
        "inference_flops": 1 - cell.sparsity, "training_flops": 1.1 - cell.sparsity, "seconds": 11.0 + cell.seed,
        "test": {name: one.to_dict()["metrics"] for name, one in reports.items()},
    }  # fmt: skip
    (path / "result.json").write_text(json.dumps(result))
    if masks:
        drop = 0.02 + 0.1 * cell.sparsity
        values = {"W": 0.9 - 0.01 * cell.seed, "Z*W": [0.9 - 0.01 * cell.seed - drop + 0.001 * i for i in range(-2, 3)]}
        (path / "masks.json").write_text(json.dumps(values))
    return path


def make(path, study, but=(), **how):
    """The whole study, finished; cells whose number is in ``but`` are left out."""
    folder = StudyFolder(path)
    folder.create(study)
    for number, cell in enumerate(cells(study)):
        if number not in but:
            finish(folder, cell, masks=bool(study.masks), **how)
    return folder
