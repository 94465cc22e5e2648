"""How a network is trained sparse.

``attach`` and ``methods`` are modules that can be called like the function they are named after.
"""

from cigl.sparsify import attach, methods
from cigl.sparsify.batch_norm import reestimate_batch_norm
from cigl.sparsify.methods import Method, method
from cigl.sparsify.schedule import constant, cosine, linear, rise
from cigl.sparsify.sparsifier import Sparsifier
from cigl.sparsify.summary import Summary

__all__ = [
    "Method",
    "Sparsifier",
    "Summary",
    "attach",
    "constant",
    "cosine",
    "linear",
    "method",
    "methods",
    "reestimate_batch_norm",
    "rise",
]
