"""From images to labels and probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.calibrate.corrections.ensemble import logits_of
from cigl.common.batches import default_forward
from cigl.common.errors import CiglError
from cigl.common.images import separate
from cigl.common.preprocessing import Preprocessing
from cigl.runtime.format.entries import checked_entries

BATCH = 64  # images at a time


@dataclass(frozen=True)
class Predictions:
    """A row for each image: ``labels`` are the likeliest classes, ``confidences`` their probabilities.

    ``probabilities`` has those of all classes, (images, classes); ``classes`` their names.

    >>> import torch
    >>> from cigl.runtime import Predictions
    >>> found = Predictions.of(torch.tensor([[0.7, 0.2, 0.1]]), ["cat", "dog", "deer"])
    >>> found.labels, [name for name, probability in found.top(2)[0]]
    (['cat'], ['cat', 'dog'])
    """

    labels: list[str]
    confidences: Tensor
    probabilities: Tensor  # (images, classes)
    classes: tuple[str, ...]

    @classmethod
    def of(cls, probabilities: Tensor, classes: Sequence[str] | None) -> Predictions:
        number = probabilities.shape[1]
        names = tuple(map(str, range(number))) if classes is None else tuple(classes)
        if len(names) != number:
            raise CiglError(f"the model has {number} classes, but there are {len(names)} names for them.")
        confidences, best = probabilities.max(1)
        return cls([names[k] for k in best.tolist()], confidences, probabilities, names)

    def top(self, k: int) -> list[list[tuple[str, float]]]:
        """For each image the ``k`` likeliest classes with their probabilities, the likeliest first."""
        values, places = self.probabilities.topk(min(k, len(self.classes)), dim=1)
        rows = zip(places.tolist(), values.tolist(), strict=True)
        return [[(self.classes[n], p) for n, p in zip(*row, strict=True)] for row in rows]

    def __len__(self) -> int:
        return len(self.labels)


def predict(
    model: nn.Module,
    images: Any,
    *,
    classes: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
) -> Predictions:
    """Labels and probabilities of images, which are preprocessed as they were for the evaluation of the model.

    Args:
        model: In eval mode; returns logits. These are calibrated if it divides them by a temperature, as what
            ``cigl.load`` returns does.
        images: A path, a PIL image, a uint8 array (height, width, channels) or a uint8 tensor (channels, height,
            width), of any size; several are a list or one array or tensor.
        classes: Their names, in the order of their numbers.
        preprocessing: How an image becomes an input.

    >>> import numpy as np
    >>> from torch import nn
    >>> from cigl import Preprocessing
    >>> from cigl.runtime import predict
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2)).eval()
    >>> photo = np.zeros((100, 60, 3), dtype=np.uint8)
    >>> found = predict(model, [photo, photo], classes=["cat", "dog"], preprocessing=Preprocessing(8, [0] * 3, [1] * 3))
    >>> found.probabilities.shape, found.labels[0] in ("cat", "dog")
    (torch.Size([2, 2]), True)
    """
    known, prepared = checked_entries(classes, preprocessing)
    if prepared is None:
        raise CiglError(
            "the model does not record how its images are preprocessed: pass preprocessing=cigl.Preprocessing("
            "size, mean, std), or save it with the model, cigl.save(model, path, classes=..., preprocessing=...)."
        )
    single = separate(images)
    if not single:
        raise CiglError("there are no images to predict.")
    found = []
    for start in range(0, len(single), BATCH):
        pixels = [_pixels(prepared, each, start + n, len(single)) for n, each in enumerate(single[start:][:BATCH])]
        found.append(probabilities(model, torch.from_numpy(np.stack(pixels)), prepared))
    return Predictions.of(torch.cat(found), known)


@torch.no_grad()
def probabilities(model: nn.Module, pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """(images, classes) in float32 on the CPU, of a batch of bytes that have the right size already."""
    if model.training:
        raise CiglError("the model is in training mode: call model.eval() first.")
    logits = logits_of(default_forward(model, preprocessing.normalised(pixels)))
    if logits.ndim != 2 or logits.shape[0] != len(pixels):
        raise CiglError(f"the model returned logits of shape {tuple(logits.shape)}, not a row for each image.")
    return logits.float().softmax(1).cpu()


def _pixels(preprocessing: Preprocessing, image: Any, number: int, of: int) -> Any:
    try:
        return preprocessing.pixels(image)
    except CiglError as error:
        raise CiglError(f"image {number + 1} of {of}: {error}" if of > 1 else str(error)) from error
