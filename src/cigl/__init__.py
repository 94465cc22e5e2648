"""Neural networks that are sparse and honest about their confidence.

Everything is imported when it is first used, so that the command line answers at once.
"""

from typing import TYPE_CHECKING

from cigl.common.errors import CiglError, CiglWarning
from cigl.common.lazy import lazy_attributes

if TYPE_CHECKING:
    from cigl import calibrate, data, models, runtime, sparsify, train
    from cigl.calibrate import reliability_diagrams
    from cigl.calibrate.reports.comparison import compare
    from cigl.calibrate.reports.evaluation import evaluate
    from cigl.common.preprocessing import Preprocessing
    from cigl.runtime import export_onnx, load, save, sparse_inference
    from cigl.sparsify import Sparsifier, constant, cosine, linear, reestimate_batch_norm, rise
    from cigl.sparsify.attaching import attach
    from cigl.sparsify.methods.catalogue import Method, method, methods

__version__ = "0.1.0"

__all__ = [
    "CiglError",
    "CiglWarning",
    "Method",
    "Preprocessing",
    "Sparsifier",
    "attach",
    "calibrate",
    "compare",
    "constant",
    "cosine",
    "data",
    "evaluate",
    "export_onnx",
    "linear",
    "load",
    "method",
    "methods",
    "models",
    "reestimate_batch_norm",
    "reliability_diagrams",
    "rise",
    "runtime",
    "save",
    "sparse_inference",
    "sparsify",
    "train",
]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "cigl": "calibrate data models runtime sparsify train",
        "cigl.calibrate": "reliability_diagrams",
        "cigl.calibrate.reports.comparison": "compare",
        "cigl.calibrate.reports.evaluation": "evaluate",
        "cigl.common.preprocessing": "Preprocessing",
        "cigl.runtime": "export_onnx load save sparse_inference",
        "cigl.sparsify": "Sparsifier constant cosine linear reestimate_batch_norm rise",
        "cigl.sparsify.attaching": "attach",
        "cigl.sparsify.methods.catalogue": "Method method methods",
    },
)
