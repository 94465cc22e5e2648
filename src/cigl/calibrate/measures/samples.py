"""From logits or probabilities and labels to what is measured per sample.

Which of the two was given is never guessed: the argument's name says it. ``measure_rows`` is the one place
where confidence, NLL and Brier are computed; the report calls it in float64, the streaming accumulator in the
dtype of its input.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cigl.calibrate.measures.bins import Array
from cigl.common.errors import CiglError, CiglWarning

LARGEST = 708.396418532264  # the NLL of float64's smallest normal number stands for an infinite one
_SMALL = 1e-30  # a probability below which a float32 loses digits
ROWS = 4096  # handled at a time, so that temporary memory does not grow with the data


@dataclass(frozen=True)
class Rows:
    """What a batch shows, per sample."""

    confidence: Tensor
    correct: Tensor
    nll: Tensor
    brier: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@dataclass(frozen=True)
class Samples:
    """What a test set shows, per sample, in its order."""

    labels: Array
    predicted: Array
    confidence: Array
    correct: Array
    nll: Array
    brier: Array
    top5: Array | None

    @property
    def n(self) -> int:
        return int(self.labels.size)


def checked_input(logits: Any, probabilities: Any, labels: Any) -> tuple[Tensor, Tensor, bool]:
    """(scores, labels, whether the scores are logits), or the reason why they can't be used."""
    if (logits is None) == (probabilities is None):
        given = "neither" if logits is None else "both"
        raise CiglError(f"{given} of logits and probabilities given: pass exactly one of logits=, probabilities=.")
    is_logits = logits is not None
    name = "logits" if is_logits else "probabilities"
    scores = as_tensor(logits if is_logits else probabilities, name)
    labels = as_tensor(labels, "labels")
    if scores.ndim != 2 or not scores.is_floating_point():
        raise CiglError(
            f"{name} must be floating-point numbers of shape (samples, classes), not "
            f"{_described(scores)}; for a binary model pass both columns, 1-p and p."
        )
    if scores.shape[0] == 0:
        raise CiglError("there are no samples: nothing can be measured on zero rows.")
    if scores.shape[1] < 2:
        raise CiglError(
            f"{name} have {scores.shape[1]} class: at least 2 are needed; for a binary model pass both "
            "columns, 1-p and p."
        )
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != scores.shape[:1] or not whole:
        column = labels.ndim == 2 and labels.shape[1] == 1
        hint = "take labels.squeeze(1)" if column else "of one-hot labels take labels.argmax(1)"
        raise CiglError(
            f"labels must be one class number per row, integers of shape ({scores.shape[0]},), not "
            f"{_described(labels)}; {hint}."
        )
    labels = labels.long()
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= scores.shape[1]:
        raise CiglError(
            f"labels run from {low} to {high}, but there are {scores.shape[1]} classes, numbered from 0: "
            "drop the samples without a label, or shift the numbers."
        )
    return scores, labels.to(scores.device), is_logits


def as_tensor(values: Any, name: str) -> Tensor:
    """What was given as a tensor, without its gradient."""
    if isinstance(values, Tensor):
        return _checked_kind(values.detach(), name)
    rows = values if isinstance(values, (list, tuple)) else [values]
    masked = sum(np.ma.count_masked(row) for row in rows if isinstance(row, np.ma.MaskedArray))
    if masked:
        entries = "1 entry" if masked == 1 else f"{masked:,} entries"
        verb = "is" if masked == 1 else "are"
        raise CiglError(f"{entries} of the {name} {verb} masked: leave out those samples, or fill them.")
    try:
        if isinstance(values, np.ndarray) and values.ndim:  # torch takes neither negative strides nor foreign bytes
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise CiglError(
            f"{name} are {type(values).__name__} that can't become a tensor: pass a tensor, an array or "
            "lists of numbers, equally long."
        ) from None


def _checked_kind(tensor: Tensor, name: str) -> Tensor:
    """Refuses what holds no numbers to compute with."""
    if tensor.device.type == "meta":
        raise CiglError(f"{name} are on the meta device, which holds no numbers: run the model on a real device.")
    if tensor.is_nested:
        raise CiglError(f"{name} are a nested tensor: pass one dense tensor.")
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise CiglError(f"{name} are a {kind} tensor: pass a dense one, {name}.to_dense().")
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CiglError(f"{name} are {kind}, which torch does not compute with: pass {name}.float().")
    return tensor


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def check_probabilities(given: Tensor, first: int = 0) -> None:
    """Each row is non-negative and sums to 1, within the tolerance of its own dtype; rows count from ``first``."""
    exact = given.to(torch.promote_types(given.dtype, torch.float32))
    right = (exact.sum(1) - 1).abs() <= max(4 * torch.finfo(given.dtype).eps, 1e-5)  # False for NaN
    right &= exact.amin(1) >= 0
    if not bool(right.all()):
        row = int((~right).nonzero()[0])
        if not bool(torch.isfinite(exact[row]).all()):
            raise CiglError(
                f"probabilities have NaN or infinity, first in row {first + row}: look for a diverged "
                "model, or an overflow in half precision."
            )
        raise CiglError(
            f"row {first + row} of the probabilities sums to {float(exact[row].sum()):.6g} with smallest "
            f"entry {float(exact[row].min()):.3g}: rows must be non-negative and sum to 1; if these are "
            "logits, pass logits=."
        )


def check_logits(scores: Tensor, labels: Tensor, first: int = 0) -> None:
    """No NaN, no +inf, and a label is never ruled out by -inf or as good as that; rows count from ``first``."""
    own = scores.gather(1, labels[:, None]).squeeze(1)
    most, least = torch.stack([scores.amax(), own.amin()]).tolist()
    if math.isfinite(most - least):  # the largest of all is NaN where anything is
        return
    largest = scores.amax(1)
    bad = ~torch.isfinite(largest) & (largest != -torch.inf)
    if bool(bad.any()):
        row = first + int(bad.nonzero()[0])
        raise CiglError(
            f"logits have NaN or infinity, first in row {row}: look for a diverged model, or an overflow "
            "in half precision (to rule out a class that is never a label, -inf is fine)."
        )
    if not bool((own == -torch.inf).any()):
        if bool((far := (largest.cpu().double() - own.cpu().double()) == torch.inf).any()):
            raise CiglError(
                f"the logits of row {first + int(far.nonzero()[0])} are so far apart that the NLL is beyond what "
                "float64 holds: look for a diverged model."
            )
        return
    row = first + int((own == -torch.inf).nonzero()[0])
    raise CiglError(
        f"the label of row {row} has probability 0, because its logit is -inf: its NLL is infinite; leave "
        "out such samples, or don't rule out classes that are labels."
    )


def warn_of_impossible(number: int) -> None:
    """Say it where cigl was called from, however deep that is."""
    if number:
        frame, level = sys._getframe(), 1
        while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("cigl", "torch"):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"{number} samples have probability 0 for their true class: their NLL is infinite and is "
            "counted as 708 (the smallest float64); pass logits=, or the mean of more members.",
            CiglWarning,
            stacklevel=level,
        )


def measure_rows(scores: Tensor, labels: Tensor, is_logits: bool) -> tuple[Rows, Tensor]:
    """The rows' measures, and all probabilities.

    The predicted class is the first of the largest. NLL comes from the logits where the probability is too small
    for its dtype, so it stays finite. Brier is sum_c (p_c - y_c)^2, between 0 and 2.
    """
    p = scores.softmax(1) if is_logits else scores.clone()
    confidence, truth = p.amax(1), p.gather(1, labels[:, None]).squeeze(1)
    brier = (torch.linalg.vector_norm(p, dim=1).square() + (1 - 2 * truth)).clamp_min(0)
    nll = (-truth.log()).clamp_max(LARGEST)
    if is_logits and bool((small := truth < _SMALL).any()):
        far = _nll(scores[small], labels[small])
        if not bool(far.isfinite().all()):  # beyond float32
            far, nll = _nll(scores[small].double(), labels[small]), nll.double()
        nll[small] = far
    # Argmax over a long row costs as much as the softmax, a second maximum without the label a tenth; so only
    # rows that seem right and have another class as large are looked at again.
    correct = truth == confidence
    rows = torch.arange(len(p), device=p.device)
    p[rows, labels] = -1
    if bool((tied := correct & (p.amax(1) >= confidence)).any()):
        correct[tied] = scores[tied].argmax(1) == labels[tied]
    p[rows, labels] = truth
    return Rows(confidence, correct, nll, brier), p


def _nll(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.logsumexp(1) - scores.gather(1, labels[:, None]).squeeze(1)


def in_top(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label is among the ``k`` largest; of equal scores the first come first.

    >>> in_top(torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), torch.tensor([1, 1]), 1).tolist()
    [False, False]
    """
    own = scores.gather(1, labels[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    return ((scores > own) | ((scores == own) & before)).sum(1) < k


def measure_samples(scores: Tensor, labels: Tensor, is_logits: bool) -> tuple[Samples, Array]:
    """Per-sample measures and probabilities in float64 on the CPU, whatever dtype and device came in."""
    rows: list[Rows] = []
    top5: list[Tensor] = []
    predicted: list[Tensor] = []
    probabilities = np.empty(tuple(scores.shape))
    impossible = 0
    for start in range(0, scores.shape[0], ROWS):
        given, own = scores[start : start + ROWS], labels[start : start + ROWS].cpu()
        if is_logits:
            check_logits(given.cpu(), own, start)
        else:
            check_probabilities(given, start)
        exact = given.cpu().double()
        measured, p = measure_rows(exact, own, is_logits)
        rows.append(measured)
        predicted.append(exact.argmax(1))
        probabilities[start : start + ROWS] = p.numpy()
        if scores.shape[1] > 5:
            top5.append(in_top(exact, own, 5))
        impossible += 0 if is_logits else int((exact.gather(1, own[:, None]) == 0).sum())
    joined = Rows.joined(rows)
    warn_of_impossible(impossible)
    return Samples(
        labels=labels.cpu().numpy().copy(),  # the caller may change theirs
        predicted=torch.cat(predicted).numpy(),
        top5=torch.cat(top5).numpy() if top5 else None,
        **{f.name: getattr(joined, f.name).numpy() for f in fields(Rows)},
    ), probabilities
