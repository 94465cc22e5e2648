"""What a run is: one frozen dataclass, the same keys in flags, files and presets. Knows nothing of torch."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cigl.common.errors import CiglError, unknown
from cigl.common.extras import from_extra
from cigl.common.numbers import is_number
from cigl.common.text import one_line

Temperature = Literal["none", "holdout", "pilot"]
TEMPERATURES: tuple[Temperature, ...] = typing.get_args(Temperature)
Options = tuple[tuple[str, Any], ...]  # names and values; a tuple, so that a configuration can be a key


Limit = tuple[Callable[[Any], bool], str]  # what a value must be, and the end of a sentence on one that isn't
SHARE: Limit = lambda share: 0 <= share < 1, "give a share from 0 to below 1"
PART: Limit = lambda share: 0 < share < 1, "give a share above 0 and below 1"
ABOVE_0: Limit = lambda number: number > 0, "it must be above 0"
NOT_NEGATIVE: Limit = lambda number: number >= 0, "it can't be negative, give 0 or more"
EPOCHS: Limit = lambda number: 0 < number <= 10**6, "it must be above 0, give at most a million"
SEED: Limit = lambda number: 0 <= number < 2**32, "give a whole number from 0 to below 2**32"
PIXELS: Limit = lambda number: 8 <= number <= 4096, "give a number of pixels from 8 to 4096"
NORM: Limit = lambda norm: norm > 0, "give a gradient norm above 0, or leave it out"
RISING: Limit = (
    lambda shares: list(shares) == sorted(shares) and all(0 < share < 1 for share in shares),
    "give rising shares of training between 0 and 1",
)


def option(default: Any, about: str, limit: Limit | None = None) -> Any:
    """A key; what needs the data or the model to be checked is checked there."""
    return field(default=default, metadata={"help": about, "limit": limit})


@dataclass(frozen=True)
class Config:
    """A run, completely: the same configuration gives the same weights (CPU, same number of threads).

    Each field is a flag of `cigl train` and a key of its YAML files; `cigl train --help` explains them.

    >>> from cigl.train import Config
    >>> Config(sparsity=0.9, seed=1).method
    'cigl'
    """

    dataset: str = option("mnist1d", "a name from `cigl data list`, a folder of images or package.module:function")
    model: str = option("mlp", "a name from `cigl models`, or package.module:factory")
    pretrained: str | None = option(
        None,
        "weights to start from: a .safetensors file or a state dict of the same network, or of torchvision's or timm's",
    )
    method: str = option("cigl", "a name from `cigl methods`, or package.module:Name")
    sparsity: float = option(0.8, "share of zeros, from 0 to below 1", SHARE)
    epochs: int = option(60, "number of epochs", EPOCHS)
    seed: int = option(
        0,
        "random seed of weights, masks, batches and augmentation",
        SEED,
    )
    batch_size: int = option(64, "examples per step", ABOVE_0)
    train_size: int | None = option(None, "use this many training examples only")
    subset: Literal["stratified", "first"] = option(
        "stratified", "how --train-size chooses: stratified (at random by seed, every class in proportion) or first"
    )
    image_size: int | None = option(
        None,
        "side of the square input in pixels, for image folders (default: by their size and number)",
        PIXELS,
    )
    val_split: float = option(
        0.2, "share of each class that is held out as test data, for image folders without train/ and val/", PART
    )
    validation: float = option(
        0.0, "share of the training data to hold out; 0.1 with --temperature holdout and with cigl-auto", SHARE
    )
    redraw: bool = option(False, "hold out a different part of the data for each seed")
    augment: bool = option(True, "augment images (pad, crop, flip) if that is usual for the dataset")
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "optimizer: sgd, adam or adamw")
    lr: float = option(0.1, "peak learning rate", ABOVE_0)
    momentum: float = option(0.9, "momentum of SGD", SHARE)
    nesterov: bool = option(True, "Nesterov momentum in SGD")
    weight_decay: float = option(1e-4, "weight decay of all parameters, as torch.optim defines it", NOT_NEGATIVE)
    decay_biases: bool = option(True, "apply weight decay to biases and normalization layers, too")
    schedule: Literal["piecewise", "cosine", "constant"] = option(
        "piecewise", "learning-rate schedule: piecewise, cosine or constant"
    )
    milestones: tuple[float, ...] = option(
        (1 / 3, 2 / 3),
        "shares of training after which the piecewise schedule decays",
        RISING,
    )
    gamma: float = option(0.5, "factor of each piecewise decay", ABOVE_0)
    lr_end: float = option(0.0, "the cosine schedule ends at this share of --lr", SHARE)
    warmup_epochs: float = option(0.0, "epochs of linear warm-up", NOT_NEGATIVE)
    label_smoothing: float = option(0.0, "label smoothing: weight of the uniform distribution in the target", SHARE)
    mixup: float = option(0.0, "alpha of mixup's Beta distribution; 0 switches mixup off", NOT_NEGATIVE)
    clip: float | None = option(None, "clip the gradient to this norm", NORM)
    bf16: bool = option(False, "train in bfloat16 (autocast)")
    distribution: Literal["erk", "er", "uniform"] = option(
        "erk", "how the weights are distributed over layers: erk, er or uniform"
    )
    update_every: int | None = option(None, "steps between topology updates")
    drop_fraction: float | None = option(None, "share of active weights that the first topology update drops")
    update_until: float | None = option(None, "share of training after which the topology is fixed")
    random_mask: float | None = option(None, "share of active weights that the random mask Z switches off in each step")
    average_from: float | None = option(None, "share of training after which weights are averaged")
    average_of: Literal["Z*W", "p*W"] | None = option(None, "what is averaged: Z*W (the paper) or p*W")
    final_weights: Literal["W", "p*W"] | None = option(
        None, "the weights that methods with weight dropout predict with: W or p*W"
    )
    options: Options = option((), "any other field of the method, such as cycle_drop=0.3; may be repeated")
    reestimate: bool = option(False, "re-estimate batch-norm statistics even if no weights are averaged")
    temperature: Temperature = option(
        "none", "temperature scaling: none, holdout (fitted on held-out data) or pilot (with an extra run)"
    )
    workers: int = option(2, "processes that read images from folders", NOT_NEGATIVE)
    device: str = option("cpu", "where to train: cpu, cuda, cuda:1, ...")
    kernels: Literal["auto", "sparse", "masked"] = option(
        "auto",
        "kernels to train on: sparse (active weights only, CPU), masked (dense layers with zeros), auto (the faster)",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _typed(each.name, getattr(self, each.name))
            _check(each, value)
            object.__setattr__(self, each.name, value)
        if self.train_size is None:
            object.__setattr__(self, "subset", "stratified")  # of all there is nothing to choose

    @property
    def held_out(self) -> float:
        """The share of the training data that is not trained on."""
        return self.validation or (0.1 if self.temperature == "holdout" else 0.0)

    def changed(self, **changes: Any) -> Config:
        return dataclasses.replace(self, **_known(changes))

    def plain(self) -> dict[str, Any]:
        """As JSON and YAML hold it."""
        keys = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        keys["options"] = dict(self.options)
        # as it was before there were such keys: digests name the folders of runs
        old = {
            "options": {}, "kernels": "auto", "redraw": False, "image_size": None, "subset": "first",
            "decay_biases": True, "val_split": 0.2, "pretrained": None,
        }  # fmt: skip
        for name, usual in old.items():
            if keys[name] == usual or (name == "subset" and self.train_size is None):
                del keys[name]
        return keys

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Config:
        """From what ``plain`` gave, now or in version 0.1.0, which knew no other subset than the first examples."""
        return cls(**{"subset": "first"} | _known(plain))

    def digest(self, *, without: tuple[str, ...] = ()) -> str:
        """A name for this configuration: the same keys and values, the same digest."""
        kept = {name: value for name, value in self.plain().items() if name not in without}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


_TYPES = typing.get_type_hints(Config)
KEYS = [each.name for each in fields(Config)]
# Those that change a field of the method; its other fields are options.
METHOD_KEYS = (
    "update_every",
    "drop_fraction",
    "update_until",
    "random_mask",
    "average_from",
    "average_of",
    "final_weights",
)


def key_type(name: str) -> tuple[Any, bool]:
    """A key's type without None, and whether it may be None."""
    kind = _TYPES[name]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None)), True
    return kind, False


def _typed(name: str, value: Any) -> Any:
    """The value in the key's type, or an error that names both."""
    if name == "options":
        return _typed_options(value)
    kind, optional = key_type(name)
    if value is None and optional:
        return None
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise unknown(name, value, typing.get_args(kind))
        return value
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)) or not all(is_number(part) for part in value):
            raise CiglError(f"{name} is {value!r}: give a list of numbers, such as [0.5, 0.75].", arguments=(name,))
        return tuple(float(part) for part in value)
    if kind is float and isinstance(value, str):  # YAML reads 1e-3 as a text
        with contextlib.suppress(ValueError):
            value = float(value)
    if kind is float and is_number(value) and math.isfinite(value):
        return float(value)
    if type(value) is not kind or kind is float:
        raise CiglError(f"{name} is {value!r}: give {_WORDS[kind]}.", arguments=(name,))
    return value


def _typed_options(value: Any) -> Options:
    """In the order of their names; whether the method has them is said when it is made."""
    try:
        options = dict(value)
    except (TypeError, ValueError):
        raise CiglError(
            f"options is {value!r}: give names and values, such as {{cycle_drop: 0.3}}.", arguments=("options",)
        ) from None
    for name, each in options.items():
        if name in METHOD_KEYS:
            raise CiglError(f"{name} is a key of its own: give it beside the options, not among them.")
        if isinstance(each, str):  # YAML reads 1e-3 as a text
            with contextlib.suppress(ValueError):
                options[name] = each = float(each)
        plain = isinstance(each, (bool, int, str)) or (isinstance(each, float) and math.isfinite(each))
        if not isinstance(name, str) or not plain:
            raise CiglError(f"option {name} is {each!r}: give a number, a string, true or false.")
    return tuple(sorted(options.items()))


_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def _check(key: Any, value: Any) -> None:
    """What can be said of a value alone."""
    limit: Limit | None = key.metadata["limit"]
    if limit is not None and value is not None and not limit[0](value):
        meant = f"; did you mean {value / 100:g}?" if limit is SHARE and 1 < value < 100 else "."
        value = list(value) if isinstance(value, tuple) else value
        raise CiglError(f"{key.name} is {value}: {limit[1]}{meant}", arguments=(key.name,))


PRESETS: dict[str, tuple[str, dict[str, Any]]] = {}


def _preset(name: str, about: str, **keys: Any) -> None:
    PRESETS[name] = (about, keys)


# The paper's text leaves open what decides calibration; its sources and its released code differ (docs/methods.md).
_TEXT = {
    "epochs": 250, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4,
    "schedule": "piecewise", "milestones": [0.307, 0.614, 0.921], "gamma": 0.2, "sparsity": 0.95,
}  # fmt: skip
_WRN = _TEXT | {"validation": 0.1, "decay_biases": False, "milestones": [30 / 88, 60 / 88]}
_RESNET50 = _WRN | {  # the steps of its schedule are counted from the end of the warm-up
    "milestones": [k / 88 for k in (21.76, 41.76, 61.76, 81.76)], "weight_decay": 1e-4, "warmup_epochs": 5.0,
}  # fmt: skip
_SAME = "the same with the schedule of"
_MAIN: dict[str, Any] = {"dataset": "cifar10", "model": "resnet50"}
_SMALLER: dict[str, Any] = {"dataset": "cifar10", "model": "wrn-22-2"}
_CIFAR100: dict[str, Any] = {"dataset": "cifar100", "model": "resnet50"}
_preset("cifar10-resnet50", "the paper's main setting", **_TEXT | _MAIN)
_preset("cifar10-resnet50-released", f"{_SAME} CigL's released code", **_RESNET50 | _MAIN | {"gamma": 0.5})
_preset("cifar10-wrn-22-2", "the paper's smaller network", **_TEXT | _SMALLER)
_preset("cifar10-wrn-22-2-reproduction", f"{_SAME} RigL's reproduction", **_WRN | _SMALLER)
_preset("cifar10-wrn-22-2-released", f"{_SAME} CigL's released code", **_WRN | _SMALLER | {"gamma": 0.5})
_preset("cifar100-resnet50", "the paper's 100 classes", **_TEXT | _CIFAR100)
_preset("cifar100-resnet50-reproduction", f"{_SAME} RigL's reproduction", **_RESNET50 | _CIFAR100, label_smoothing=0.1)
_preset(
    "cifar100-resnet50-released", f"{_SAME} CigL's released code", **_RESNET50 | _CIFAR100 | {"gamma": 0.5, "lr": 0.3}
)
_preset(
    "imagenet-resnet50", "the paper's ImageNet setting", dataset="imagenet", model="resnet50", epochs=100,
    batch_size=64, lr=0.025, momentum=0.9, nesterov=True, weight_decay=1e-4, schedule="piecewise",
    milestones=[0.3, 0.7, 0.9], gamma=0.1, warmup_epochs=5.0, sparsity=0.8,
)  # fmt: skip
_preset("mnist1d-mlp", "the default: half a minute on a CPU")
_preset(
    "fashion-mnist-mlp", "10,000 images, an MLP: about 15 seconds on a CPU", dataset="fashion-mnist", model="mlp",
    train_size=10_000, subset="first", epochs=40, batch_size=128, lr=0.1, milestones=[0.34, 0.68], gamma=0.5,
    update_every=50,
)  # fmt: skip
_preset(
    "cifar10-convnet", "a small convolutional network: minutes on a CPU", dataset="cifar10", model="convnet",
    train_size=10_000, subset="first", epochs=20, batch_size=128, lr=0.05, update_every=50,
)  # fmt: skip


def resolve(
    flags: Mapping[str, Any] | None = None, file: Path | str | None = None, preset: str | None = None
) -> Config:
    """A configuration from several sources: flags win over the file, the file over the preset, that over the defaults.

    Args:
        flags: Keys and values.
        file: A YAML file with keys.
        preset: A name of ``cigl.train.PRESETS``.

    >>> from cigl.train import resolve
    >>> resolve({"seed": 3}, preset="fashion-mnist-mlp").batch_size
    128
    """
    given = read_keys(Path(file)) if file is not None else {}
    preset = preset or given.pop("preset", None)
    given.pop("preset", None)
    if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
        raise unknown("preset", preset, PRESETS)
    keys = dict(PRESETS[preset][1]) if preset is not None else {}
    if _is_complete(given):
        given = {"subset": "first"} | given
    given |= dict(flags or {})
    if "train_size" in given:
        keys.pop("subset", None)  # the preset's goes with the preset's number
    return Config(**_known(keys | given))


def _is_complete(keys: Mapping[str, Any]) -> bool:
    """Whether it is from a run's folder: it has every key that ``plain`` has always had, and is read as by ``of``."""
    return set(keys) >= set(Config(train_size=1, subset="first").plain())


def _known(keys: Mapping[str, Any]) -> dict[str, Any]:
    for key in keys:
        if key not in KEYS:
            raise unknown("key", key, KEYS)
    return dict(keys)


def read_keys(path: Path) -> dict[str, Any]:
    """What a YAML file says, if it is keys and values, each key once."""
    with from_extra("cli", "configuration files"):
        import yaml

    if not path.is_file():
        raise CiglError(f"there is no file {path}: give a YAML file with keys and values, such as `sparsity: 0.9`.")
    try:
        text = path.read_text("utf-8")
        content, twice = yaml.safe_load(text), _written_twice(yaml.compose(text, yaml.SafeLoader), set())
    except (OSError, ValueError, RecursionError, OverflowError, yaml.YAMLError) as error:
        raise CiglError(f"the configuration {path} can't be read: {one_line(error)}.") from error
    if twice is not None:
        line = twice.start_mark.line + 1
        raise CiglError(
            f"the configuration {path} has the key {twice.value!r} twice, the second time in line {line}: keep one."
        )
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CiglError(f"the configuration {path} must hold keys and values, such as `sparsity: 0.9`.")
    return {str(key): value for key, value in content.items()}


def _written_twice(node: Any, seen: set[Any]) -> Any:
    """The YAML node of a key that stands twice in one mapping, of which YAML would take the last."""
    if node is None or node in seen or node.id == "scalar":
        return None
    seen.add(node)
    if node.id == "sequence":
        parts = node.value
    else:
        keys: set[str] = set()
        for key, _ in node.value:
            if key.id == "scalar" and key.value in keys:
                return key
            keys.add(str(key.value))
        parts = [value for _, value in node.value]
    return next(filter(None, (_written_twice(part, seen) for part in parts)), None)
