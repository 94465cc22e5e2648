"""Moved to ``cigl.report.statistics``; this keeps scripts running that were written after the docs of 0.1."""

from cigl.lazy import lazy

__getattr__ = lazy(__name__, {"cigl.report.statistics": "OverSeeds difference mean"})
