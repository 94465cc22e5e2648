"""Moved to ``cigl.report.evidence``; this keeps scripts running that were written after the docs of 0.1."""

from cigl.lazy import lazy

__getattr__ = lazy(__name__, {"cigl.report.evidence": "Evidence Measured Run"})
