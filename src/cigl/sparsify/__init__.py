"""How a network is trained sparse."""

from cigl.sparsify.attaching import attach
from cigl.sparsify.methods.catalogue import Method, method
from cigl.sparsify.methods.schedule import constant, cosine, linear, rise
from cigl.sparsify.results.batch_norm import reestimate_batch_norm
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
    "reestimate_batch_norm",
    "rise",
]
