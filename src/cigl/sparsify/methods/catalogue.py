"""The catalogue: every method as a few fields and, where it differs, a score.

A method is a frozen dataclass. A field that is None says that the method has no such part, so that an
option which would have no effect is refused. To make your own, change fields (``cigl.method("cigl",
random_mask=0.05)``) or subclass and override one of the functions; then pass the object to
``cigl.attach``, or name it as ``package.module:name`` wherever a method is named. A field of its own, of
type bool, int, float, str or Literal, is an option that ``method``, the command line and studies take.

>>> class LeastUsed(RigL):
...     def grow_score(self, layer, step):
...         return layer.gradient.abs() * ~layer.explored
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from cigl.common.errors import CiglError, unknown
from cigl.common.numbers import is_number
from cigl.common.references import load_reference
from cigl.common.text import percent
from cigl.sparsify.methods.averaging import Collection, RunningMean, Snapshots
from cigl.sparsify.methods.controller import Controller, Rule
from cigl.sparsify.methods.options import Option, check, options_of
from cigl.sparsify.methods.schedule import CycleTimetable, Decay, Rise, Timetable, constant, cosine, rate_at, rise
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import read

UNMASKED = 3  # active inputs per unit; a layer with no more has no Z where its rate follows from them

_ROUNDS = 10  # of a training that is too short for the usual interval


@dataclass(frozen=True, kw_only=True)
class Method:
    """A static random mask: what the other methods start from.

    A method is a frozen dataclass. ``cigl.method(name, **fields)`` changes fields; a subclass with its own score is a
    method of your own.

    Args:
        name: What it is called in tables and files.
        about: A line for ``cigl.methods()``.
        update_every: Steps between topology updates.
        drop_fraction: The share of active weights that an update drops, as a ``Decay`` (``cigl.cosine(0.3)``).
        update_until: The share of training after which the topology stays.
        random_mask: The share of active weights that Z switches off in each step, or ``cigl.rise(...)``.
        fan_in_factor: The share is scaled down in each layer by its active inputs per unit and the number of layers
            (see ``mask_rate``).
        average_from: The share of training after which snapshots are averaged.
        average_of: "Z*W", or its expectation "p*W", which has less noise where snapshots are few.
        snapshots_per_epoch: How many are averaged of each epoch; None: one, at its end.
        second_moment: Keep the variance of the snapshots, too, for ``sparse.sample_posterior``.
        keep_snapshots: Keep each snapshot instead of their mean, for ``sparse.members``.
        resparsify: Cut the average back to the layer's number of weights, so that M may change meanwhile.
        final_weights: What ``finalize`` returns where nothing is averaged: "W" or "p*W".
        start_variance: Adam's second moment of a grown weight: "zero", or the "mean" of its layer.
        predicts_with: One model ("weights"), or the average over ``sparse.members()`` ("members").
        starts_dense: Whether training starts with all weights active.
        memory: Names of float32 tensors that are kept per weight, and saved with the masks.

    >>> import cigl
    >>> method = cigl.method("cigl", average_of="p*W")
    >>> method.random_mask, method.drop_fraction
    (0.1, Decay(kind='cosine', start=0.3))
    """

    name: str = "static"
    about: str = "a random mask that never changes"
    update_every: int | None = None
    drop_fraction: Decay | None = None
    update_until: float | None = None
    random_mask: float | Rise | None = None
    fan_in_factor: float | None = None  # Z's rates follow from fan-in and depth: see mask_rate
    average_from: float | None = None
    average_of: Literal["Z*W", "p*W"] | None = None
    snapshots_per_epoch: int | None = None  # None: one, at its end
    second_moment: bool | None = None
    keep_snapshots: bool = False
    resparsify: bool = False  # the average is cut back to the layer's count, so M may move meanwhile
    final_weights: Literal["W", "p*W"] = "W"  # what finalize returns where nothing is averaged
    start_variance: Literal["zero", "mean"] = "zero"  # Adam's second moment of a grown weight
    predicts_with: Literal["weights", "members"] = "weights"  # one model, or the average over sparse.members()
    starts_dense: bool = False
    memory: tuple[str, ...] = ()  # a float32 per weight each, kept with the masks and saved with them

    # When

    def timetable(self, epochs: float, steps_per_epoch: int) -> Timetable:
        return Timetable(**self._times(epochs, steps_per_epoch))

    def _times(self, epochs: float, steps_per_epoch: int) -> dict[str, Any]:
        return {
            "steps": round(epochs * steps_per_epoch),
            "steps_per_epoch": steps_per_epoch,
            "update_every": self.update_every,
            "update_until": self.update_until or 0.0,
            "drop_fraction": self.drop_fraction or constant(0.0),
            "average_from": self.average_from,
            "snapshots_per_epoch": self.snapshots_per_epoch or 1,
        }

    def with_rounds(self, epochs: float, steps_per_epoch: int) -> Method:
        """The same, with more frequent rounds where the first of them would come too late for this training."""
        table = self.timetable(epochs, steps_per_epoch)
        if self.update_every is None or table.update_steps or not table.update_end:
            return self
        return replace(self, update_every=max(1, table.update_end // _ROUNDS))

    def wants_gradient(self, table: Timetable, step: int) -> bool:
        """Whether the dense gradient of this step is needed."""
        return False

    # How much

    def budget(self, layer: Layer, active: int, table: Timetable, step: int) -> tuple[int, int]:
        """How many weights of a layer a round keeps and how many it grows."""
        k = min(math.floor(table.fraction(step) * active), layer.size - active)
        return active - k, k

    @property
    def has_random_mask(self) -> bool:
        return rate_at(self.random_mask, 1.0) > 0

    def mask_rate(self, layer: Layer, active: int, table: Timetable, step: int) -> float:
        """The share of a layer's ``active`` weights that Z switches off in a step.

        With a ``fan_in_factor`` c, ``random_mask`` is scaled down in a layer so that it ends at

            min(random_mask, c * (n - 3) / sqrt(n) / L), or 0 where n < 3,

        n being the active inputs of one of its units, on average, and L the number of sparse layers: noise adds up
        from layer to layer, and the fewer inputs a unit has, the less of it it bears (evidence/rise.md).
        """
        rate, end = (rate_at(self.random_mask, progress) for progress in (step / table.steps, 1.0))
        if self.fan_in_factor is None or not end:
            return rate
        inputs = max(active / layer.units, UNMASKED)
        bound = self.fan_in_factor * (inputs - UNMASKED) / math.sqrt(inputs) / layer.layers
        return rate * min(1.0, bound / end)

    # Which

    def keep_score(self, layer: Layer, active: Tensor, step: int) -> Tensor:
        """One per active position; the largest are kept. W is the raw weight, never a zero that Z put there."""
        return read(layer.weight, active).abs()

    def grow_score(self, layer: Layer, step: int) -> Tensor | None:
        """A new tensor of the layer's shape; the largest outside the kept weights are grown. None: no round."""
        return None

    def observe(self, layer: Layer, table: Timetable, step: int) -> None:
        """Called after every step for layers whose gradient was kept, before a round."""

    # What is collected

    def collection(self) -> Collection | None:
        if self.average_from is None:
            return None
        return Snapshots() if self.keep_snapshots else RunningMean(bool(self.second_moment))

    def controller(self) -> Controller | None:
        """What sets the strength of Z from held-out examples; None: its rates are those of ``mask_rate``."""
        return None

    def describe(self) -> dict[str, Any]:
        """The method as plain data that survives JSON, to be compared and saved."""
        return asdict(self) | {"class": type(self).__qualname__, "memory": list(self.memory)}


@dataclass(frozen=True, kw_only=True)
class SET(Method):
    """Mocanu et al. 2018, with RigL's schedule: drop small weights, grow at random."""

    name: str = "set"
    about: str = "drops small weights, grows at random"
    update_every: int | None = 100
    drop_fraction: Decay | None = cosine(0.3)
    update_until: float | None = 0.75

    def grow_score(self, layer: Layer, step: int) -> Tensor | None:
        return layer.uniform("grow", step)


@dataclass(frozen=True, kw_only=True)
class RigL(SET):
    """Evci et al. 2020: drop small weights, grow where the dense gradient is largest."""

    name: str = "rigl"
    about: str = "drops small weights, grows where gradients are large"

    def wants_gradient(self, table: Timetable, step: int) -> bool:
        return table.updates(step)

    def grow_score(self, layer: Layer, step: int) -> Tensor | None:
        return None if layer.gradient is None else layer.gradient.abs()


@dataclass(frozen=True, kw_only=True)
class ITOP(RigL):
    """Liu et al. 2021: RigL with rare, large rounds up to the end. 4000 steps are meant for batch 128."""

    name: str = "itop"
    about: str = "RigL with rare, large rounds until the end of training"
    update_every: int | None = 4000
    drop_fraction: Decay | None = cosine(0.5)
    update_until: float | None = 1.0


@dataclass(frozen=True, kw_only=True)
class SNFS(RigL):
    """Dettmers & Zettlemoyer 2019: grow by the momentum of the dense gradient, which the method keeps.

    Only the growth criterion is theirs: weights are not redistributed between layers.
    """

    name: str = "snfs"
    about: str = "grows by the momentum of the dense gradient (no redistribution between layers)"
    memory: tuple[str, ...] = ("momentum",)
    momentum: float = 0.9

    def wants_gradient(self, table: Timetable, step: int) -> bool:
        return step <= table.update_end

    def observe(self, layer: Layer, table: Timetable, step: int) -> None:
        if layer.gradient is not None:
            layer.memory["momentum"].lerp_(layer.gradient.to(torch.float32), 1 - self.momentum)

    def grow_score(self, layer: Layer, step: int) -> Tensor | None:
        return layer.memory["momentum"].abs()


@dataclass(frozen=True, kw_only=True)
class DSTEE(RigL):
    """Huang et al. 2022: |g| + c ln t / (N + eps), N the topology rounds in which a weight was active."""

    name: str = "dst-ee"
    about: str = "RigL with a bonus for weights that were rarely active"
    memory: tuple[str, ...] = ("rounds",)
    c: float = 1e-3
    eps: float = 1.0

    def observe(self, layer: Layer, table: Timetable, step: int) -> None:
        if table.updates(step):
            layer.memory["rounds"].add_(layer.mask)

    def grow_score(self, layer: Layer, step: int) -> Tensor | None:
        if layer.gradient is None:
            return None
        bonus = self.c * math.log(step) / (layer.memory["rounds"] + self.eps)
        return layer.gradient.abs() + bonus


@dataclass(frozen=True, kw_only=True)
class GMP(Method):
    """Zhu & Gupta 2017: from dense to the layer's target along a cubic, by magnitude, nothing grows back."""

    name: str = "gmp"
    about: str = "gradual magnitude pruning from a dense start, without regrowth"
    update_every: int | None = 100
    update_until: float | None = 0.75
    starts_dense: bool = True

    def budget(self, layer: Layer, active: int, table: Timetable, step: int) -> tuple[int, int]:
        left = 1 - step / table.update_steps[-1]  # so that the last round reaches the target
        count = layer.target + round((layer.size - layer.target) * left**3)
        return min(active, count), 0


@dataclass(frozen=True, kw_only=True)
class CigL(RigL):
    """The paper's Algorithm 1: RigL's mask M, a random mask Z in each step, and the average of M*Z*W.

    ``average_of="p*W"`` averages the expectation of Z*W, which has less noise where snapshots are few.
    """

    name: str = "cigl"
    about: str = "RigL with a random mask, and weight & mask averaging at the end (the paper's)"
    random_mask: float | Rise | None = 0.1
    average_from: float | None = 0.8
    average_of: Literal["Z*W", "p*W"] | None = "Z*W"
    second_moment: bool | None = False


@dataclass(frozen=True, kw_only=True)
class AutoCigL(CigL):
    """The rates of ``cigl-rise`` times a strength that follows over-confidence on held-out examples (``Rule``).

    Without held-out examples the strength stays 0: RigL with averaged weights.
    """

    name: str = "cigl-auto"
    about: str = "CigL with a random mask only as strong as the network is over-confident on held-out examples"
    random_mask: float | Rise | None = rise(0.5, until=0.75)
    fan_in_factor: float | None = 0.13
    average_of: Literal["Z*W", "p*W"] | None = "p*W"
    snapshots_per_epoch: int | None = 4
    final_weights: Literal["W", "p*W"] = "p*W"
    gain: float = 4.0
    tolerance: float = 0.02
    patience: int = 10
    most: float = 2.5

    def __post_init__(self) -> None:
        for name in ("gain", "tolerance", "patience", "most"):
            value = getattr(self, name)
            if is_number(value) and not 0 <= value < math.inf:
                raise CiglError(f"{name} is {value!r}: give a number, 0 or more.", arguments=(name,))

    def controller(self) -> Controller | None:
        return Controller(Rule(self.gain, self.tolerance, self.patience, self.most))


@dataclass(frozen=True, kw_only=True)
class SupTickets(RigL):
    """Yin et al. 2022: cycles at the end, each a large round and a ticket; the tickets are superposed.

    The average of the tickets is cut back to each layer's count by magnitude. The learning rate is the
    user's: ``sparse.learning_rate(...)`` offers the cycle as a function for ``LambdaLR``.
    """

    name: str = "sup-tickets"
    about: str = "averages the tickets of several cycles and cuts the average back by magnitude"
    average_from: float | None = 0.8
    resparsify: bool = True
    cycle_epochs: int = 2
    cycle_drop: float = 0.5
    lr_high: float = 0.05
    lr_low: float = 0.005

    def timetable(self, epochs: float, steps_per_epoch: int) -> Timetable:
        table = CycleTimetable(
            **self._times(epochs, steps_per_epoch),
            cycle_epochs=self.cycle_epochs,
            cycle_drop=self.cycle_drop,
            lr_high=self.lr_high,
            lr_low=self.lr_low,
        )
        if table.first_cycle >= table.steps:
            raise CiglError(
                f"no cycle of {self.cycle_epochs} epochs fits after {percent(self.average_from or 0.0, 0)} of {epochs} "
                "epochs: train longer, or lower average_from or cycle_epochs.",
                arguments=("average_from",),
            )
        return table


@dataclass(frozen=True, kw_only=True)
class WeightDropout(RigL):
    """The paper's RigL + W-DP: trained with Z, tested with W (or ``final_weights="p*W"``)."""

    name: str = "rigl-wdp"
    about: str = "RigL with weight dropout; predicts with W"
    random_mask: float | Rise | None = 0.1


_CATALOGUE: dict[str, Method] = {
    method.name: method
    for method in (
        Method(name="dense", about="no mask at all; pass sparsity=0", starts_dense=True),
        Method(),
        SET(),
        SNFS(),
        RigL(),
        ITOP(),
        DSTEE(),
        GMP(),
        CigL(),
        CigL(
            name="cigl-no-rm",
            about="CigL without the random mask: RigL, averaged",
            random_mask=None,
            average_of=None,
        ),
        CigL(
            name="cigl-no-wma",
            about="CigL without averaging: keeps its snapshots, for averaged predictions",
            keep_snapshots=True,
            second_moment=None,
            predicts_with="members",
        ),
        CigL(
            name="cigl-rise",
            about="CigL with a random mask that rises, less in deep networks and where units have few inputs",
            random_mask=rise(0.5, until=0.75),
            fan_in_factor=0.13,
            average_of="p*W",
            snapshots_per_epoch=4,
        ),
        AutoCigL(),
        SupTickets(),
        WeightDropout(),
        WeightDropout(
            name="rigl-mcdp",
            about="RigL with weight dropout; predicts with masks drawn at test time",
            predicts_with="members",
        ),
    )
}


def methods() -> dict[str, str]:
    """The names that ``cigl.attach`` takes, each with a line about it.

    >>> from cigl import methods
    >>> methods()["rigl"]
    'drops small weights, grows where gradients are large'
    """
    return {name: method.about for name, method in _CATALOGUE.items()}


def method(name: str, **changes: Any) -> Method:
    """A method of the catalogue, or one of your own, with some of its fields changed.

    Args:
        name: A name from ``cigl.methods()``, or ``"package.module:name"``.
        changes: Fields of the method; one that the method has no use for is refused.

    >>> from cigl import method
    >>> method("cigl", average_of="p*W", random_mask=0.05).random_mask
    0.05
    """
    if ":" in name:
        return changed(_by_reference(name), **changes)
    if name not in _CATALOGUE:
        raise unknown("method", name, _CATALOGUE)
    return changed(_CATALOGUE[name], **changes)


def options(of: str | Method) -> dict[str, Option]:
    """The options that a method takes, each with its type and default, as for ``method(name, **options)``.

    >>> options("dst-ee")["c"]
    Option(name='c', type=<class 'float'>, default=0.001, choices=())
    """
    return options_of(method(of) if isinstance(of, str) else of)


def changed(base: Method, **changes: Any) -> Method:
    """The method with these fields; one that the method has no use for is refused."""
    known = [field.name for field in fields(base)]
    for option in changes:
        if option not in known:
            raise unknown(f"option of method {base.name!r}", option, known)
        if getattr(base, option) is None:
            having = [m.name for m in _CATALOGUE.values() if getattr(m, option, None) is not None]
            raise CiglError(
                f"method {base.name!r} has no {option}, so setting it would change nothing; "
                f"methods that have it: {', '.join(having) or 'none'}."
            )
    if is_number(changes.get("drop_fraction")) and base.drop_fraction is not None:
        changes["drop_fraction"] = replace(base.drop_fraction, start=float(changes["drop_fraction"]))
    if is_number(changes.get("random_mask")) and isinstance(base.random_mask, Rise):
        changes["random_mask"] = replace(base.random_mask, rate=float(changes["random_mask"]))
    result = replace(base, **changes)
    check(result)
    return result


def _by_reference(text: str) -> Method:
    """``package.module:name``: a method, a class of methods, or a function that returns one."""
    found = load_reference(text, "method")
    if callable(found):
        try:
            found = found()
        except Exception as error:  # it is the user's, and can fail in any way
            raise CiglError(f"{text} could not make a method: {type(error).__name__}: {error}") from error
    if not isinstance(found, Method):
        raise CiglError(f"{text} is a {type(found).__name__}, but must be or return a cigl.Method.")
    return found
