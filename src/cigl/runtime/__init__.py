"""Sparse models on a CPU: a file that holds only their non-zeros, and an engine whose kernels skip the zeros."""

from cigl.runtime.engine import SparseInference, sparse_inference
from cigl.runtime.saving import describe, load, save

__all__ = ["SparseInference", "describe", "load", "save", "sparse_inference"]
