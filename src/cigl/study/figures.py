"""Moved to ``cigl.report.figures.catalogue``; kept for scripts that were written after the docs of 0.1."""


def __getattr__(name: str) -> object:
    from cigl.report.figures import catalogue as figures

    return getattr(figures, name)
