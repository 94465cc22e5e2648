"""The command line: a module per command. torch is imported by the commands that need it, never for --help."""

from cigl.cli import train, evaluate, export, predict, bench, study, report, catalogues  # noqa: F401, I001  (in --help's order)
from cigl.cli.shared import app

__all__ = ["app"]
