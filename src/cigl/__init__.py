"""Neural networks that are sparse and honest about their confidence."""

from cigl import calibrate
from cigl.calibrate import compare, evaluate, reliability_diagrams
from cigl.errors import CiglError, CiglWarning
from cigl.sparsify import (
    Method,
    Sparsifier,
    attach,
    constant,
    cosine,
    linear,
    method,
    methods,
    reestimate_batch_norm,
)

__version__ = "0.1.0"

__all__ = [
    "CiglError",
    "CiglWarning",
    "Method",
    "Sparsifier",
    "attach",
    "calibrate",
    "compare",
    "constant",
    "cosine",
    "evaluate",
    "linear",
    "method",
    "methods",
    "reestimate_batch_norm",
    "reliability_diagrams",
]
