"""The paper's experiments as data: which methods, which sparsities, and at which scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cigl.errors import CiglError, unknown
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
class Plan:
    """A study at no scale in particular."""

    about: str
    methods: tuple[str, ...]  # beside the companions
    sparsity: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99)
    paper: tuple[str, ...] = ("cifar10-resnet50", "cifar10-wrn-22-2", "cifar100-resnet50")  # presets at paper scale
    companions: bool = True
    reference: str = "rigl"
    masks: int = 0


PLANS: dict[str, Plan] = {
    "main": Plan("accuracy and ECE against sparsity, RigL and CigL", ()),
    "dropout": Plan(
        "weight dropout and MC dropout against CigL", ("rigl-wdp", "rigl-wdp-pw", "rigl-mcdp"),
        paper=("cifar10-resnet50", "cifar10-wrn-22-2"),
    ),
    "calibrators": Plan("mixup, temperature scaling and label smoothing against CigL", ("rigl-mixup", "rigl-ls")),
    "ablation": Plan(
        "CigL without its random mask, and without averaging (both readings)",
        ("cigl-no-rm", "cigl-no-wma", "rigl-wdp", "rigl-wdp-pw"),
    ),
    "set": Plan(
        "the same question for SET", ("set",), (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
        paper=("cifar10-resnet50", "cifar100-resnet50"),
    ),
    "sup-tickets": Plan(
        "superposed tickets against CigL", ("sup-tickets",), (0.8, 0.9, 0.95),
        paper=("cifar10-resnet50", "cifar100-resnet50"),
    ),
    "wma-effect": Plan(
        "what averaging does without the random mask", ("rigl", "cigl-no-rm", "cigl"),
        paper=("cifar100-resnet50", "cifar10-wrn-22-2"), companions=False,
    ),
    "double-descent": Plan(
        "accuracy and ECE from dense to 99.9 % sparse, and reliability diagrams", ("rigl", "cigl"),
        (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999), paper=("cifar100-resnet50",), companions=False,
    ),
    "mask-correlation": Plan(
        "accuracy of W against that of Z*W over five draws of Z", ("cigl",), (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
        paper=("cifar10-wrn-22-2",), companions=False, reference="cigl", masks=5,
    ),
    "imagenet": Plan(
        "ResNet-50 on ImageNet, or on your images with --set dataset=folder:PATH", (), (0.8, 0.9),
        paper=("imagenet-resnet50",),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Where a study is run, if not in the paper's settings."""

    about: str
    settings: Mapping[str, Keys]
    batch_norm: bool
    masked: Keys  # of methods with a random mask


SCALES: dict[str, Scale] = {
    "small": Scale(
        "10,000 images of Fashion-MNIST, an MLP: minutes on a laptop",
        {"fashion-mnist-mlp": {"preset": "fashion-mnist-mlp"}},
        batch_norm=False,
        masked={},
    ),
    "small-conv": Scale(
        "10,000 images of CIFAR-10, a thin wide ResNet with batch norm: hours on a laptop",
        {"cifar10-wrn-10-1": {"preset": "cifar10-convnet", "model": "wrn-10-1", "lr": 0.1, "epochs": 30}},
        batch_norm=True,
        masked={"random_mask": 0.05},
    ),
    "paper": Scale("the paper's settings: GPUs, days", {}, batch_norm=True, masked={}),
}
# ImageNet has a scale of its own: the paper's, or few epochs on few images.
_FEW_IMAGES = {"preset": "imagenet-resnet50", "epochs": 10, "batch_size": 32, "warmup_epochs": 1.0, "update_every": 10}
# All methods train on the same split, and each is judged without and with the temperature that the rest of it gives.
_SHARED = {"validation": 0.1, "temperature": "holdout"}


def names() -> dict[str, str]:
    return {name: plan.about for name, plan in PLANS.items()}


def study(name: str, scale: str = "small") -> Study:
    """A study of the catalogue, with three seeds.

    >>> study("wma-effect", "paper").settings.keys()
    dict_keys(['cifar100-resnet50', 'cifar10-wrn-22-2'])
    """
    if name not in PLANS:
        raise unknown("study", name, PLANS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    plan, where = PLANS[name], SCALES[scale]
    settings = dict(where.settings) or {preset: {"preset": preset} for preset in plan.paper}
    batch_norm, masked = where.batch_norm, where.masked
    if name == "imagenet":
        if scale == "small-conv":
            raise CiglError("the imagenet study has the scales small and paper.")
        settings = {"imagenet-resnet50": _FEW_IMAGES if scale == "small" else {"preset": "imagenet-resnet50"}}
        batch_norm, masked = True, {}
    chosen = [*(COMPANIONS if plan.companions else ()), *plan.methods]
    methods = _methods([each for each in chosen if batch_norm or each != "rigl-bn"], masked)
    return Study(
        name,
        settings={setting: {**own, **_SHARED} for setting, own in settings.items()},
        methods=methods,
        sparsity=plan.sparsity,
        about=f"{plan.about} ({where.about})",
        reference=plan.reference,
        masks=plan.masks,
        labels={each: METHODS[each][0] for each in methods},
    )


def _methods(chosen: Iterable[str], masked: Keys) -> dict[str, Keys]:
    """In the catalogue's order, whatever the study's."""
    wanted = set(chosen)
    return {
        name: {**keys, **(masked if name in MASKED else {})} for name, (_, keys) in METHODS.items() if name in wanted
    }
