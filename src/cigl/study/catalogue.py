"""The paper's experiments as data: which methods, which sparsities, and at which scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cigl.common.errors import CiglError, unknown
from cigl.study.grid import Study

Keys = Mapping[str, Any]

# A method's label for people, and the keys of a run that make it.
METHODS: dict[str, tuple[str, Keys]] = {
    "dense": ("Dense", {"method": "dense", "sparsity": 0.0, "update_every": None}),
    "rigl": ("RigL", {"method": "rigl"}),
    "rigl-annealed": ("RigL, annealed", {"method": "rigl", "schedule": "cosine", "lr_end": 0.01}),
    "rigl-bn": ("RigL, BN re-estimated", {"method": "rigl", "reestimate": True}),
    "rigl-wdp": ("RigL + W-DP", {"method": "rigl-wdp"}),
    "rigl-wdp-pw": ("RigL + W-DP (p*W)", {"method": "rigl-wdp", "final_weights": "p*W"}),
    "rigl-mcdp": ("RigL + MC-DP", {"method": "rigl-mcdp"}),
    "rigl-mixup": ("RigL + Mixup", {"method": "rigl", "mixup": 0.2}),
    "rigl-ls": ("RigL + LS", {"method": "rigl", "label_smoothing": 0.1}),
    "cigl": ("CigL", {"method": "cigl"}),
    "cigl-mask-10": ("CigL, Z of 10 %", {"method": "cigl", "random_mask": 0.1}),
    "cigl-pw": ("CigL (p*W)", {"method": "cigl", "average_of": "p*W"}),
    "cigl-pw-pilot": ("CigL (p*W), pilot", {"method": "cigl", "average_of": "p*W", "temperature": "pilot"}),
    "cigl-mixup": ("CigL + Mixup", {"method": "cigl", "mixup": 0.2}),
    "cigl-no-rm": ("CigL w/o RM", {"method": "cigl-no-rm"}),
    "cigl-no-wma": ("CigL w/o WMA", {"method": "cigl-no-wma"}),
    "set": ("SET", {"method": "set"}),
    "sup-tickets": ("Sup-tickets", {"method": "sup-tickets"}),
}
COMPANIONS = ("dense", "rigl", "rigl-annealed", "rigl-bn", "cigl", "cigl-pw", "cigl-pw-pilot", "cigl-mixup")
MASKED = {name for name in METHODS if name.startswith("cigl") or "dp" in name} - {"cigl-no-rm"}


@dataclass(frozen=True)
class Scale:
    """Where an experiment is run."""

    about: str
    settings: Mapping[str, Keys]  # none: the settings of the paper that the experiment names
    batch_norm: bool
    masked: Keys  # of methods with a random mask
    also: tuple[str, ...] = ()  # beside the companions


SCALES: dict[str, Scale] = {
    "small": Scale(
        "10,000 images of Fashion-MNIST, an MLP: minutes on a laptop",
        {"fashion-mnist-mlp": {"preset": "fashion-mnist-mlp"}},
        batch_norm=False,
        masked={},
    ),
    # A mask of 3 % was chosen on validation data (90 % sparse, seed 100): there a mask of 10 % cost accuracy.
    "small-conv": Scale(
        "5,000 images of CIFAR-10, a thin wide ResNet with batch norm: an hour on a laptop",
        {
            "cifar10-wrn-10-1-half": {
                "dataset": "cifar10",
                "model": "wrn-10-1-half",
                "train_size": 5_000,
                "subset": "first",
                "epochs": 20,
                "batch_size": 64,
                "augment": False,
                "weight_decay": 5e-4,
                "milestones": [0.34, 0.68],
                "gamma": 0.2,
                "update_every": 50,
            }
        },
        batch_norm=True,
        masked={"random_mask": 0.03},
        also=("cigl-mask-10",),
    ),
    "paper": Scale("the paper's settings: GPUs, days", {}, batch_norm=True, masked={}),
}
# All methods train on the same split, and each is judged without and with the temperature that the rest of it gives.
_SHARED = {"validation": 0.1, "temperature": "holdout"}
# ImageNet has a small scale of its own.
_FEW_EPOCHS = {"preset": "imagenet-resnet50", "epochs": 10, "batch_size": 32, "warmup_epochs": 1.0, "update_every": 10}
_IMAGENET_SCALES = {
    "small": Scale("10 epochs", {"imagenet-resnet50": _FEW_EPOCHS}, batch_norm=True, masked={}),
    "paper": SCALES["paper"],
}


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper, at no scale in particular."""

    about: str
    shows: str  # which of the paper's tables and figures it is behind
    methods: tuple[str, ...]  # beside the companions
    sparsity: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    paper: tuple[str, ...] = ("cifar10-resnet50", "cifar10-wrn-22-2", "cifar100-resnet50")  # presets at paper scale
    companions: bool = True
    reference: str = "rigl"
    masks: int = 0
    scales: Mapping[str, Scale] = field(default_factory=lambda: SCALES)


EXPERIMENTS: dict[str, Experiment] = {
    "main": Experiment(
        "accuracy and ECE against sparsity, RigL and CigL", "the paper's accuracy table and its figure of ECE", ()
    ),
    "dropout": Experiment(
        "weight dropout and MC dropout against CigL", "the paper's two dropout tables",
        ("rigl-wdp", "rigl-wdp-pw", "rigl-mcdp"), paper=("cifar10-resnet50", "cifar10-wrn-22-2"),
    ),
    "calibrators": Experiment(
        "mixup, temperature scaling and label smoothing against CigL", "the paper's polygons of ECE",
        ("rigl-mixup", "rigl-ls"),
    ),
    "ablation": Experiment(
        "CigL without its random mask, and without averaging (both readings)", "the paper's ablation bars",
        ("cigl-no-rm", "cigl-no-wma", "rigl-wdp", "rigl-wdp-pw"),
    ),
    "set": Experiment(
        "the same question for SET", "the paper's SET table", ("set",), (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
        paper=("cifar10-resnet50", "cifar100-resnet50"),
    ),
    "sup-tickets": Experiment(
        "superposed tickets against CigL", "the paper's Sup-tickets table", ("sup-tickets",), (0.8, 0.9, 0.95),
        paper=("cifar10-resnet50", "cifar100-resnet50"),
    ),
    "wma-effect": Experiment(
        "what averaging does without the random mask", "the paper's table on averaging alone",
        ("rigl", "cigl-no-rm", "cigl"), paper=("cifar100-resnet50", "cifar10-wrn-22-2"), companions=False,
    ),
    "double-descent": Experiment(
        "accuracy and ECE from dense to 99.9 % sparse, and reliability diagrams", "the paper's first figure",
        ("rigl", "cigl"), (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.997, 0.999),
        paper=("cifar100-resnet50",), companions=False,
    ),
    "mask-correlation": Experiment(
        "accuracy of W against that of Z*W over five draws of Z", "the paper's figure of W against Z*W", ("cigl",),
        (0.0, 0.5, 0.8, 0.9, 0.95, 0.99), paper=("cifar10-wrn-22-2",), companions=False, reference="cigl", masks=5,
    ),
    "imagenet": Experiment(
        "ResNet-50 on ImageNet, or on your images with --set dataset=folder:PATH", "the paper's ImageNet bars", (),
        (0.8, 0.9), paper=("imagenet-resnet50",), scales=_IMAGENET_SCALES,
    ),
}  # fmt: skip


def names() -> dict[str, str]:
    return {name: experiment.about for name, experiment in EXPERIMENTS.items()}


def study(name: str, scale: str = "small") -> Study:
    """A study of the catalogue, with three seeds.

    >>> study("wma-effect", "paper").settings.keys()
    dict_keys(['cifar100-resnet50', 'cifar10-wrn-22-2'])
    """
    if name not in EXPERIMENTS:
        raise unknown("study", name, EXPERIMENTS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    experiment = EXPERIMENTS[name]
    if scale not in experiment.scales:
        raise CiglError(f"the {name} study has the scales {' and '.join(experiment.scales)}.")
    where = experiment.scales[scale]
    settings = dict(where.settings) or {preset: {"preset": preset} for preset in experiment.paper}
    chosen = [*((*COMPANIONS, *where.also) if experiment.companions else ()), *experiment.methods]
    methods = _methods([each for each in chosen if where.batch_norm or each != "rigl-bn"], where.masked)
    return Study(
        name,
        settings={setting: {**own, **_SHARED} for setting, own in settings.items()},
        methods=methods,
        sparsity=experiment.sparsity,
        about=f"{experiment.about} ({where.about})",
        reference=experiment.reference,
        masks=experiment.masks,
        labels={each: METHODS[each][0] for each in methods},
    )


def _methods(chosen: Iterable[str], masked: Keys) -> dict[str, Keys]:
    """In the catalogue's order, whatever the study's."""
    wanted = set(chosen)
    return {
        name: {**(masked if name in MASKED else {}), **keys} for name, (_, keys) in METHODS.items() if name in wanted
    }
