"""How confidence is measured and corrected."""

from cigl.calibrate.corrections.corruptions import corrupt
from cigl.calibrate.corrections.ensemble import Ensemble, MonteCarlo, mean_prediction
from cigl.calibrate.corrections.temperature import Temperature, TemperatureScaled, fit_temperature
from cigl.calibrate.corrections.training import mixup, smooth_labels
from cigl.calibrate.reports.classification import Bin, Estimate, Report, report
from cigl.calibrate.reports.comparison import Comparison, Difference, compare
from cigl.calibrate.reports.diagram import prepare_reliability_diagram, prepare_shift_figure, reliability_diagrams
from cigl.calibrate.reports.evaluation import evaluate, predict
from cigl.calibrate.reports.held_out import HeldOut, split_and_scale
from cigl.calibrate.reports.regression import (
    RegressionReport,
    evaluate_regression,
    precision,
    regression_report,
    weight_decay,
)
from cigl.calibrate.reports.shift import Shift, under_shift
from cigl.calibrate.reports.streaming import Streaming

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
