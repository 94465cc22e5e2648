"""How confidence is measured and corrected.

``compare``, ``corrupt``, ``evaluate`` and ``report`` are modules that can be called like their main function.
"""

from typing import TYPE_CHECKING

from cigl.calibrate.compare import Comparison, Difference
from cigl.calibrate.diagram import prepare_reliability_diagram, prepare_shift_figure, reliability_diagrams
from cigl.calibrate.ensemble import Ensemble, MonteCarlo, mean_prediction
from cigl.calibrate.evaluate import predict
from cigl.calibrate.regression import (
    RegressionReport,
    evaluate_regression,
    precision,
    regression_report,
    weight_decay,
)
from cigl.calibrate.report import Bin, Estimate, Report
from cigl.calibrate.shift import Shift, under_shift
from cigl.calibrate.streaming import Streaming
from cigl.calibrate.temperature import HeldOut, Temperature, TemperatureScaled, fit_temperature, split_and_scale
from cigl.calibrate.training import mixup, smooth_labels

if TYPE_CHECKING:  # a type checker knows no callable modules: it sees the functions
    from cigl.calibrate.compare import compare
    from cigl.calibrate.corrupt import corrupt
    from cigl.calibrate.evaluate import evaluate
    from cigl.calibrate.report import report
else:
    from cigl.calibrate import compare, corrupt, evaluate, report

__all__ = [
    "Bin",
    "Comparison",
    "Difference",
    "Ensemble",
    "Estimate",
    "HeldOut",
    "MonteCarlo",
    "RegressionReport",
    "Report",
    "Shift",
    "Streaming",
    "Temperature",
    "TemperatureScaled",
    "compare",
    "corrupt",
    "evaluate",
    "evaluate_regression",
    "fit_temperature",
    "mean_prediction",
    "mixup",
    "precision",
    "predict",
    "prepare_reliability_diagram",
    "prepare_shift_figure",
    "regression_report",
    "reliability_diagrams",
    "report",
    "smooth_labels",
    "split_and_scale",
    "under_shift",
    "weight_decay",
]
