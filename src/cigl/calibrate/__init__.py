"""How confidence is measured and mended."""

from cigl.calibrate.report import Bin, Estimate, Report, report

__all__ = ["Bin", "Estimate", "Report", "report"]
