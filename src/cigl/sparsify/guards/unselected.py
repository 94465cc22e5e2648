"""Weights that cigl.attach could not see: unfrozen or added to the model since."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from cigl.common.errors import CiglWarning
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.parameters.select import LayerChoice, usual_parameters

_EVERY = 10  # steps: it walks through the whole model


class Unselected:
    """Looks now and then whether the model has weights that would be made sparse if it were attached now."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer], choice: LayerChoice):
        self._model, self._choice = model, choice
        self._known = {layer.parameter for layer in layers}

    def parameters_were_replaced(self) -> None:
        self._known |= set(usual_parameters(self._model, self._choice).values())

    def run(self, step: int) -> None:
        """Before step ``step + 1``."""
        if step % _EVERY == 0:
            self.check()

    def check(self) -> None:
        """Say once of each that it stays dense."""
        found = {n: p for n, p in usual_parameters(self._model, self._choice).items() if p not in self._known}
        if found:
            self._known.update(found.values())
            name, others = next(iter(found)), f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            message = (
                f"{name}{others} was frozen or not yet in the model when cigl.attach was called, so it is trained "
                f"dense: attach after unfreezing or adding it, or say that it is meant so with {{{name!r}: False}} in "
                "layers."
            )
            warnings.warn(message, CiglWarning, stacklevel=4)
