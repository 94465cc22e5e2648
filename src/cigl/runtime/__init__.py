"""Sparse models on a CPU: a file that holds only their non-zeros, and an engine whose kernels skip the zeros."""

from cigl.runtime.engine import SparseInference, sparse_inference
from cigl.runtime.onnx_files import export_onnx
from cigl.runtime.predicting import Predictions, predict
from cigl.runtime.saving import describe, load, save

__all__ = [
    "Predictions",
    "SparseInference",
    "describe",
    "export_onnx",
    "load",
    "predict",
    "save",
    "sparse_inference",
]
