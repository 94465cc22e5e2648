"""Moved to ``cigl.report.figures``; this keeps scripts running that were written after the docs of 0.1."""

from cigl.lazy import lazy

__getattr__ = lazy(
    __name__, {"cigl.report.figures": "prepare_bars prepare_lines prepare_masks prepare_polygons prepare_reliability"}
)
