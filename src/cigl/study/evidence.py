"""Moved to ``cigl.report.evidence``; kept for scripts that were written after the docs of 0.1."""


def __getattr__(name: str) -> object:
    from cigl.report import evidence

    return getattr(evidence, name)
