"""Moved to ``cigl.report.evidence.measurements``; kept for scripts that were written after the docs of 0.1."""


def __getattr__(name: str) -> object:
    from cigl.report.evidence import measurements as evidence

    return getattr(evidence, name)
