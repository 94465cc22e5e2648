"""Moved to ``cigl.report.evidence.statistics``; kept for scripts that were written after the docs of 0.1."""


def __getattr__(name: str) -> object:
    from cigl.report.evidence import statistics

    return getattr(statistics, name)
